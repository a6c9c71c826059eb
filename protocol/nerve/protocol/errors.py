"""The error tree: stable codes that are the same in Python, over HTTP and on the wire.

    NerveError
    ├── BadInput        usage, exit 2     InvalidName, InvalidJSON, TooLarge, UnknownField,
    │                                     InvalidArguments
    ├── Conflict        exit 3            RequestConflict, BindingMismatch, DigestMismatch, Fenced,
    │                                     WrongState
    ├── NotFound        exit 4            UnknownAgent, UnknownTurn, UnknownSession, UnknownThread,
    │                                     UnknownExecution, UnknownTool
    ├── Timeout         waiting, exit 5   carries the identities to ask again with
    ├── Unavailable     exit 6            LedgerUnavailable, BrokerUnavailable, Overloaded, DiskFull
    ├── Incompatible    exit 3            ProtocolVersion, SchemaTooNew, WrongLedger,
    │                                     DefinitionMissing
    ├── Refused         exit 3            Unauthorized
    ├── Damaged         exit 6            what is stored is not what was stored
    └── ToolFailed      exit 1            a tool proves that it failed without an effect

UNKNOWN is a state of an execution and never an error. No message may hold a secret.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, ClassVar


class JSONFault(StrEnum):
    """Why a text or a value is not JSON that both sides can carry exactly."""

    SYNTAX = "syntax"
    ENCODING = "encoding"
    DUPLICATE_KEY = "duplicate_key"
    SECOND_ROOT = "second_root"
    LOSSY_NUMBER = "lossy_number"
    NUL = "nul"
    SURROGATE = "surrogate"
    DEPTH = "depth"
    CYCLE = "cycle"
    KEY = "key"
    TYPE = "type"


class NerveError(Exception):
    """What was wrong, where, and the next step."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        next_step: str = "",
        details: Mapping[str, Any] | None = None,  # JSON values, checked where they leave
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.next_step = next_step
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        text = f"{self.message} (at {self.where})" if self.where else self.message
        return f"{text}. {self.next_step}" if self.next_step else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (rebuild, (self.to_json(),))

    def to_json(self) -> dict[str, Any]:
        """The form used over HTTP, in `--json` output and in stored results."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        optional = {"where": self.where, "next_step": self.next_step, "details": self.details}
        return body | {key: value for key, value in optional.items() if value}


class BadInput(NerveError):
    code = "bad_input"
    exit_code = 2
    http_status = 400


class InvalidName(BadInput):
    code = "invalid_name"


class InvalidJSON(BadInput):
    code = "invalid_json"

    def __init__(self, message: str, *, reason: JSONFault, where: str = "", next_step: str = ""):
        super().__init__(message, where=where, next_step=next_step, details={"reason": str(reason)})
        self.reason = reason


class TooLarge(BadInput):
    code = "too_large"
    http_status = 413


class UnknownField(BadInput):
    code = "unknown_field"


class InvalidArguments(BadInput):
    """A tool call whose arguments do not fit the schema; the text can go back to the model."""

    code = "invalid_arguments"


class Conflict(NerveError):
    code = "conflict"
    exit_code = 3
    http_status = 409


class RequestConflict(Conflict):
    """The same id was used before with other content."""

    code = "request_conflict"


class BindingMismatch(Conflict):
    code = "binding_mismatch"


class DigestMismatch(Conflict):
    code = "digest_mismatch"


class Fenced(Conflict):
    """Another owner has taken over since; nothing was written."""

    code = "fenced"


class WrongState(Conflict):
    code = "wrong_state"


class NotFound(NerveError):
    code = "not_found"
    exit_code = 4
    http_status = 404


class UnknownAgent(NotFound):
    code = "unknown_agent"


class UnknownTurn(NotFound):
    code = "unknown_turn"


class UnknownSession(NotFound):
    code = "unknown_session"


class UnknownThread(NotFound):
    code = "unknown_thread"


class UnknownExecution(NotFound):
    code = "unknown_execution"


class UnknownTool(NotFound):
    code = "unknown_tool"


class Timeout(NerveError):
    """The wait ended, the work did not: `identities` says what to ask for again."""

    code = "timeout"
    exit_code = 5
    http_status = 504

    def __init__(
        self,
        message: str,
        *,
        identities: Mapping[str, str] | None = None,
        where: str = "",
        next_step: str = "",
    ) -> None:
        super().__init__(message, where=where, next_step=next_step, details=identities)
        self.identities: dict[str, str] = dict(identities or {})


class Unavailable(NerveError):
    code = "unavailable"
    exit_code = 6
    http_status = 503


class LedgerUnavailable(Unavailable):
    code = "ledger_unavailable"


class BrokerUnavailable(Unavailable):
    code = "broker_unavailable"


class Overloaded(Unavailable):
    code = "overloaded"
    http_status = 429


class DiskFull(Unavailable):
    code = "disk_full"
    http_status = 507


class Incompatible(NerveError):
    code = "incompatible"
    exit_code = 3
    http_status = 409


class ProtocolVersion(Incompatible):
    code = "protocol_version"


class SchemaTooNew(Incompatible):
    code = "schema_too_new"


class WrongLedger(Incompatible):
    code = "wrong_ledger"


class DefinitionMissing(Incompatible):
    code = "definition_missing"


class Refused(NerveError):
    code = "refused"
    exit_code = 3
    http_status = 403


class Unauthorized(Refused):
    code = "unauthorized"


class Damaged(NerveError):
    code = "damaged"
    exit_code = 6


class ToolFailed(NerveError):
    """Raised by a tool that can prove it failed and left nothing behind."""

    code = "tool_failed"
    http_status = 422

    def __init__(
        self,
        message: str,
        details: Mapping[str, Any] | None = None,  # JSON values, checked where they are stored
        *,
        where: str = "",
        next_step: str = "",
    ) -> None:
        super().__init__(message, where=where, next_step=next_step, details=details)


def _tree(root: type[NerveError]) -> Iterator[type[NerveError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


ERRORS: Mapping[str, type[NerveError]] = {error.code: error for error in _tree(NerveError)}


def rebuild(body: Mapping[str, Any]) -> NerveError:
    """The error that `to_json` described; a code of a newer build becomes a plain NerveError."""
    code = str(body.get("code", NerveError.code))
    kind = ERRORS.get(code, NerveError)
    error = kind.__new__(kind)
    message = str(body.get("message", code))
    NerveError.__init__(
        error,
        message if kind.code == code else f"{code}: {message}",
        where=str(body.get("where", "")),
        next_step=str(body.get("next_step", "")),
        details=body.get("details"),
    )
    if isinstance(error, Timeout):
        error.identities = {key: str(value) for key, value in error.details.items()}
    if isinstance(error, InvalidJSON):
        error.reason = JSONFault(error.details.get("reason", JSONFault.SYNTAX))
    return error
