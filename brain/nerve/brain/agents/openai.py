"""`OpenAIModel`: any OpenAI-compatible endpoint through the official SDK, its own retries off."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.http import seconds
from nerve.brain.agents.models import (
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelError,
    ModelRequest,
    ModelTimeout,
    ModelUnavailable,
    OnDelta,
    status_error,
)
from nerve.brain.agents.secret import ApiKey
from nerve.brain.agents.wire import Assembly, request_body, stream_error
from nerve.protocol.errors import BadInput


class OpenAIModel:
    """The SDK's client is made at the first request, and needs `pip install 'nerve[openai]'`.

    A `client` that is handed in stays the caller's; `options` are added to each request.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api_key_file: str | Path | None = None,
        api_key_env: str = "OPENAI_API_KEY",
        timeout_seconds: float = 120.0,
        options: Mapping[str, Any] | None = None,
        client: Any = None,  # openai.AsyncOpenAI, which the base install does not have
    ) -> None:
        self.name = model
        self._base_url = base_url
        self._key = ApiKey(api_key, api_key_file, api_key_env)
        self._timeout = timeout_seconds
        self._options = dict(options or {})
        self._client = client
        self._sdk: Any = None

    @property
    def _where(self) -> str:
        return f"model {self.name}"

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        client = self._connected()
        body = request_body(self.name, request, self._options)
        assembly = Assembly(on_delta, self._where)
        headers = {"Idempotency-Key": request.key}
        answering = False
        try:
            stream = await client.chat.completions.create(**body, extra_headers=headers)
            answering = True
            async with stream:
                async for chunk in stream:
                    assembly.chunk(_plain(chunk))
        except ModelError:
            raise
        except Exception as error:
            raise self._translated(error, answering) from None
        return assembly.answer()

    async def close(self) -> None:
        """Close the client that was made here."""
        if self._sdk is not None:
            await self._client.close()

    def _connected(self) -> Any:
        if self._client is None:
            self._sdk = _sdk()
            self._client = self._sdk.AsyncOpenAI(
                api_key=self._key.require(self._where),
                base_url=self._base_url,
                timeout=self._timeout,
                max_retries=0,
            )
        return self._client

    def _translated(self, error: Any, answering: bool) -> Exception:  # Any: the SDK's exceptions
        sdk = _sdk()
        where = self._where
        text = self._key.hidden(str(error))[:300]
        if isinstance(error, sdk.APITimeoutError):
            return ModelTimeout(
                f"the model's server was silent for {self._timeout:g} s", where=where
            )
        if isinstance(error, sdk.APIStatusError):
            after = seconds(error.response.headers.get("retry-after"))
            return status_error(error.status_code, text, where=where, retry_after_seconds=after)
        if isinstance(error, sdk.APIConnectionError) and not answering:
            return ModelUnavailable(
                f"no connection to the model's server: {text}",
                where=where,
                next_step="Check base_url and the network",
            )
        broke = isinstance(error, (sdk.APIConnectionError, ValueError))
        if isinstance(error, sdk.APIError) and not broke:
            return stream_error(error.body or {"message": text}, where)
        if broke or _is_of_the_http_client(error):
            return ModelAnswerDiscarded(
                f"the stream broke ({type(error).__name__}): nothing of this answer was used",
                where=where,
            )
        return cast("Exception", error)


def _plain(chunk: Any) -> dict[str, Any]:
    """The SDK hands on what is no object as it came."""
    if hasattr(chunk, "model_dump"):
        return cast("dict[str, Any]", chunk.model_dump(exclude_unset=True))
    raise ValueError("an event is not an object")


def _is_of_the_http_client(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


def _sdk() -> Any:
    try:
        return import_module("openai")
    except ImportError:
        raise BadInput(
            "OpenAIModel needs the openai package",
            where="model",
            next_step="Run: pip install 'nerve[openai]'",
        ) from None
