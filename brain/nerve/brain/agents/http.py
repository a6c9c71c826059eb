"""`HttpModel`: the chat-completions wire on the standard library alone, one request a connection."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson

from nerve.brain.agents.models import (
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelRefused,
    ModelRequest,
    ModelTimeout,
    ModelUnavailable,
    OnDelta,
    status_error,
)
from nerve.brain.agents.secret import ApiKey
from nerve.brain.agents.wire import Assembly, EventStream, error_text, request_body
from nerve.protocol.errors import BadInput

HEADERS_MAX = 128
ERROR_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES = 64 * 1024
V = TypeVar("V")


class HttpModel:
    """Any endpoint that speaks chat completions. `options` are added to each request's body.

    `timeout_seconds` is the longest silence, `answer_seconds` the longest whole answer. Without one
    of the three ways to name a key none is sent.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        api_key_file: str | Path | None = None,
        api_key_env: str | None = None,
        timeout_seconds: float = 120.0,
        answer_seconds: float = 900.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = model
        self._place = _place(base_url)
        self._key = ApiKey(api_key, api_key_file, api_key_env)
        self._silence = timeout_seconds
        self._whole = answer_seconds
        self._options = dict(options or {})

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        where = self._place.shown
        body = orjson.dumps(request_body(self.name, request, self._options))
        try:
            async with asyncio.timeout(self._whole), self._connection() as (reader, writer):
                writer.write(self._head(request.key, len(body)) + body)
                await self._silent_at_most(writer.drain())
                return await self._answer(reader, Assembly(on_delta, where))
        except TimeoutError:
            raise ModelTimeout(
                f"the model did not finish within {self._whole:g} s", where=where
            ) from None
        except (asyncio.IncompleteReadError, EOFError, ConnectionError) as error:
            raise ModelAnswerDiscarded(
                f"the connection broke ({type(error).__name__}): nothing of this answer was used",
                where=where,
            ) from None

    async def _answer(self, reader: asyncio.StreamReader, assembly: Assembly) -> ModelAnswer:
        status, headers = await self._silent_at_most(_read_head(reader))
        pieces = _body(reader, headers, self._silent_at_most)
        if status != 200:
            raise await self._refusal(status, headers, pieces)
        if "text/event-stream" not in headers.get("content-type", "text/event-stream"):
            assembly.event((await _all(pieces, ANSWER_BYTES_MAX)).decode("utf-8", "replace"))
            return assembly.answer()
        events = EventStream()
        async for piece in pieces:
            for data in events.feed(piece):
                if assembly.event(data):
                    return assembly.answer()
        return assembly.answer()

    async def _refusal(
        self, status: int, headers: Mapping[str, str], pieces: AsyncIterator[bytes]
    ) -> Exception:
        raw = await _all(pieces, ERROR_BYTES_MAX)
        return status_error(
            status,
            self._key.hidden(error_text(raw)),
            where=self._place.shown,
            retry_after_seconds=seconds(headers.get("retry-after")),
        )

    @asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
        place = self._place
        context = ssl.create_default_context() if place.tls else None
        try:
            reader, writer = await self._silent_at_most(
                asyncio.open_connection(place.host, place.port, ssl=context, limit=PIECE_BYTES)
            )
        except ssl.SSLCertVerificationError as error:
            raise ModelRefused(
                f"the certificate is not trusted: {error.verify_message}", where=place.shown
            ) from None
        except OSError as error:
            raise ModelUnavailable(
                f"no connection to the model's server: {error.strerror or type(error).__name__}",
                where=place.shown,
                next_step="Start it, or check base_url",
            ) from None
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _silent_at_most(self, waiting: Awaitable[V]) -> V:
        try:
            async with asyncio.timeout(self._silence):
                return await waiting
        except TimeoutError:
            raise ModelTimeout(
                f"the model's server was silent for {self._silence:g} s", where=self._place.shown
            ) from None

    def _head(self, key: str, length: int) -> bytes:
        place = self._place
        lines = [
            f"POST {place.path} HTTP/1.1",
            f"Host: {place.authority}",
            "Content-Type: application/json",
            "Accept: text/event-stream, application/json",
            f"Content-Length: {length}",
            f"Idempotency-Key: {key}",
            "Connection: close",
        ]
        secret = self._key.read()
        if secret:
            lines.append(f"Authorization: Bearer {secret}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    tls: bool
    host: str
    port: int
    authority: str
    path: str
    shown: str


def _place(base_url: str) -> _Place:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(
            f"{parts.scheme or 'no scheme'} is not http or https, or the host is missing",
            where="base_url",
            next_step="Give a URL like https://host/v1",
        )
    tls = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    path = parts.path.rstrip("/") + "/chat/completions"
    return _Place(
        tls=tls,
        host=parts.hostname,
        port=parts.port or (443 if tls else 80),
        authority=authority,
        path=path,
        shown=f"{parts.scheme}://{authority}{path}",
    )


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    version, _, rest = (await _line(reader)).partition(" ")
    code = rest[:3]
    if not version.startswith("HTTP/1.") or not code.isdigit():
        raise ModelAnswerDiscarded("what answered does not speak HTTP/1.1")
    headers: dict[str, str] = {}
    for _ in range(HEADERS_MAX):
        line = await _line(reader)
        if not line:
            return int(code), headers
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ModelAnswerDiscarded(f"more than {HEADERS_MAX} headers")


async def _line(reader: asyncio.StreamReader) -> str:
    try:
        raw = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise ModelAnswerDiscarded("a line of the reply is too long") from None
    return raw.rstrip(b"\r\n").decode("latin-1")


async def _body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], patient: Any
) -> AsyncIterator[bytes]:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while True:
            size = _number(await patient(_line(reader)), 16)
            if size == 0:
                return
            yield await patient(reader.readexactly(size))
            await patient(_line(reader))
    elif "content-length" in headers:
        left = _number(headers["content-length"], 10)
        while left > 0:
            piece = await patient(reader.readexactly(min(left, PIECE_BYTES)))
            left -= len(piece)
            yield piece
    else:
        while piece := await patient(reader.read(PIECE_BYTES)):
            yield piece


def _number(text: str, base: int) -> int:
    try:
        size = int(text.partition(";")[0], base)
    except ValueError:
        raise ModelAnswerDiscarded("the length of the reply is not a number") from None
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise ModelAnswerDiscarded(f"the reply is longer than {ANSWER_BYTES_MAX} bytes")
    return size


async def _all(pieces: AsyncIterator[bytes], bytes_max: int) -> bytes:
    kept = b""
    async for piece in pieces:
        kept += piece
        if len(kept) > bytes_max:
            break
    return kept[:bytes_max]


def seconds(text: str | None) -> float | None:
    """A Retry-After in seconds; its form as a date is left to our own backoff."""
    try:
        return min(3600.0, max(0.0, float(text))) if text else None
    except ValueError:
        return None
