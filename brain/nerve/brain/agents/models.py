"""The port to a model, what it is asked and answers, and how its failures are classified.

A model sends one request and never retries: a host repeats a failed Run with a stored budget, and a
retry hidden in here would be paid for and counted by nobody.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ssl import SSLCertVerificationError
from typing import Any, ClassVar, Final, Protocol, cast

from nerve.brain.harness import Usage
from nerve.protocol.canonical import JsonValue
from nerve.protocol.errors import (
    BindingMismatch,
    Conflict,
    DefinitionMissing,
    DigestMismatch,
    Fenced,
    NerveError,
    ProtocolVersion,
    RequestConflict,
    SchemaTooNew,
    Timeout,
    Unavailable,
    WrongLedger,
)


class Finish(StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    FILTERED = "content_filter"


class DeltaKind(StrEnum):
    TEXT = "text"
    ARGUMENTS = "arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of an answer on its way: of its text, or of the arguments of its `index`-th call."""

    kind: DeltaKind
    text: str
    index: int = 0
    tool: str = ""


OnDelta = Callable[[Delta], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """A tool as a model is told about it; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSchema:
    """The form a final answer must have, where the agent demands one."""

    name: str
    schema: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One question to a model. `messages` are the journal's neutral chat messages (see `chat`).

    `key` is the same whenever the same question of a Turn is asked again.
    """

    key: str
    messages: Sequence[JsonValue]
    instructions: str = ""
    tools: Sequence[ToolSchema] = ()
    output: OutputSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A tool that a model asks for; text arguments are as the model wrote them, not yet read."""

    tool: str
    arguments: str | Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A whole answer. `reasoning` is private."""

    text: str = ""
    calls: Sequence[ModelCall] = ()
    usage: Usage | None = None
    reasoning: str = ""
    finish: Finish = Finish.STOP


class Model(Protocol):
    """What answers. `name` is shown in histories; it holds no secret."""

    @property
    def name(self) -> str: ...

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """One whole answer, or an error: a part of an answer is never returned."""
        ...


class ModelError(NerveError):
    """A request to a model failed. `status` is the HTTP status, where there was one."""

    code = "model_error"
    http_status = 502
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        next_step: str = "",
        status: int | None = None,
        retry_after_seconds: float | None = None,
        details: Mapping[str, Any] | None = None,  # JSON values, as in NerveError
    ) -> None:
        facts = {} if status is None else {"status": status}
        super().__init__(
            message, where=where, next_step=next_step, details=facts | dict(details or {})
        )
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class ModelRefused(ModelError):
    """The provider refuses this request, and would again."""

    code = "model_refused"


class ModelUnavailable(ModelError):
    """Not reached, overloaded or broken: worth another try."""

    code = "model_unavailable"
    retryable = True


class ModelTimeout(ModelUnavailable):
    code = "model_timeout"


class ModelAnswerDiscarded(ModelError):
    """An answer that was cut, empty or not text that can be stored: nothing of it was used."""

    code = "model_answer_discarded"
    retryable = True


RETRYABLE_STATUS: Final = frozenset({408, 409, 425, 429})


def is_retryable_status(status: int) -> bool:
    return status in RETRYABLE_STATUS or status >= 500


def status_error(
    status: int, message: str, *, where: str, retry_after_seconds: float | None = None
) -> ModelError:
    """The error for an HTTP status: 408, 409, 425, 429 and 5xx are worth another try."""
    kind = ModelUnavailable if is_retryable_status(status) else ModelRefused
    steps = {
        401: "Check the API key",
        403: "Check what the API key may do",
        404: "Check base_url and the model's name",
    }
    return kind(
        f"the model's server answered {status}: {message[:300]}",
        where=where,
        next_step=steps.get(status, ""),
        status=status,
        retry_after_seconds=retry_after_seconds,
    )


class FailureClass(StrEnum):
    """TRANSIENT is tried again with a stored budget, PERMANENT ends the Turn; INTERRUPTED (lost
    ownership, shutdown) and INCOMPATIBLE (another build is needed) cost no budget."""

    TRANSIENT = "TRANSIENT"
    PERMANENT = "PERMANENT"
    INTERRUPTED = "INTERRUPTED"
    INCOMPATIBLE = "INCOMPATIBLE"


_LASTING: Final = (RequestConflict, BindingMismatch, DigestMismatch)
_LASTING_IO: Final = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    FileExistsError,
    SSLCertVerificationError,
)
# The roots of connection errors in openai, httpx and aiohttp, which we do not import.
_FOREIGN_IO: Final = frozenset({"APIConnectionError", "TransportError", "ClientConnectionError"})


def classify(error: BaseException) -> FailureClass:
    """What a failed `advance` means for its Turn."""
    match error:
        case asyncio.CancelledError() | Fenced():
            return FailureClass.INTERRUPTED
        case ModelError():
            return FailureClass.TRANSIENT if error.retryable else FailureClass.PERMANENT
        case DefinitionMissing() | ProtocolVersion() | SchemaTooNew() | WrongLedger():
            return FailureClass.INCOMPATIBLE
        case Unavailable() | Timeout():
            return FailureClass.TRANSIENT
        case Conflict() if not isinstance(error, _LASTING):
            return FailureClass.TRANSIENT
        case NerveError():
            return FailureClass.PERMANENT
        case BaseExceptionGroup():
            return _worst([classify(inner) for inner in cast("Any", error).exceptions])
        case OSError() | EOFError() if not isinstance(error, _LASTING_IO):
            return FailureClass.TRANSIENT
        case _:
            return _classify_foreign(error)


def retry_after_seconds(error: BaseException) -> float | None:
    """How long the provider asked to wait, where it did."""
    return error.retry_after_seconds if isinstance(error, ModelError) else None


def _worst(classes: Sequence[FailureClass]) -> FailureClass:
    order = (FailureClass.PERMANENT, FailureClass.INCOMPATIBLE, FailureClass.INTERRUPTED)
    return next((kind for kind in order if kind in classes), FailureClass.TRANSIENT)


def _classify_foreign(error: BaseException) -> FailureClass:
    response = getattr(error, "response", None)
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code")):
        status = getattr(holder, name, None)
        if isinstance(status, int):
            retry = is_retryable_status(status)
            return FailureClass.TRANSIENT if retry else FailureClass.PERMANENT
    names = {kind.__name__ for kind in type(error).__mro__}
    return FailureClass.TRANSIENT if names & _FOREIGN_IO else FailureClass.PERMANENT
