"""The life of one execution: its states, the one table of legal moves, its effect and result.

UNKNOWN says that nobody can know the outcome. It is a state, not an error, and only a
reconciliation with evidence moves an execution out of it.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field, JsonValue, StringConstraints

from nerve.protocol.canonical import canonical_bytes, check_value
from nerve.protocol.content import Part, TextPart, text_of
from nerve.protocol.errors import InvalidJSON, NerveError, TooLarge, WrongState
from nerve.protocol.output import OutputSeal
from nerve.protocol.values import printable
from nerve.protocol.wire import REASON_MAX, Code, Reason, Wire

RESULT_BYTES_MAX: Final = 896 * 1024
DETAILS_BYTES_MAX: Final = 16 * 1024


class ExecutionState(StrEnum):
    ADMITTED = "ADMITTED"
    STARTED = "STARTED"
    RECOVERING = "RECOVERING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_settled(self) -> bool:
        """Terminal for good: not even a reconciliation changes it."""
        return not MOVES[self]


class Effect(StrEnum):
    """What the tool left behind in the world, whatever its outcome is called."""

    NONE = "none"
    COMPLETED = "completed"
    UNCONFIRMED = "unconfirmed"


_S = ExecutionState
_ENDS: Final = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})

# ADMITTED may become UNKNOWN: a restored ledger says ADMITTED of what had started since.
MOVES: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = MappingProxyType(
    {
        _S.ADMITTED: frozenset({_S.STARTED, _S.RECOVERING, _S.FAILED, _S.CANCELLED, _S.UNKNOWN}),
        _S.STARTED: _ENDS | {_S.RECOVERING, _S.UNKNOWN},
        _S.RECOVERING: _ENDS | {_S.STARTED, _S.UNKNOWN},
        _S.UNKNOWN: _ENDS,
        _S.SUCCEEDED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)
TERMINAL: Final = _ENDS | {_S.UNKNOWN}
EFFECTS: Final[Mapping[ExecutionState, frozenset[Effect]]] = MappingProxyType(
    {
        _S.ADMITTED: frozenset({Effect.NONE}),
        _S.STARTED: frozenset({Effect.UNCONFIRMED}),
        _S.RECOVERING: frozenset({Effect.UNCONFIRMED}),
        _S.SUCCEEDED: frozenset({Effect.COMPLETED}),
        _S.FAILED: frozenset(Effect),
        _S.CANCELLED: frozenset(Effect),
        _S.UNKNOWN: frozenset({Effect.UNCONFIRMED}),
    }
)


def can_move(source: ExecutionState, target: ExecutionState, *, reconciling: bool = False) -> bool:
    """Only a reconciliation leaves UNKNOWN, and it leaves nothing else."""
    return target in MOVES[source] and reconciling == (source is _S.UNKNOWN)


def check_move(
    source: ExecutionState,
    target: ExecutionState,
    *,
    reconciling: bool = False,
    where: str = "execution",
) -> ExecutionState:
    if can_move(source, target, reconciling=reconciling):
        return target
    if source is _S.UNKNOWN:
        step = "Reconcile it with evidence: nerve reconcile"
    elif reconciling:
        step = "Only an UNKNOWN outcome can be reconciled"
    else:
        step = "Read the execution again: its state has moved on"
    raise WrongState(f"{source} cannot become {target}", where=where, next_step=step)


def check_effect(state: ExecutionState, effect: Effect, where: str = "effect") -> None:
    if effect not in EFFECTS[state]:
        allowed = ", ".join(sorted(EFFECTS[state]))
        raise WrongState(
            f"{state} with effect {effect}", where=where, next_step=f"Its effect is {allowed}"
        )


class Failure(Wire):
    """An error as it is stored: a stable code, a text, and whether the tool proved it."""

    code: Code
    message: Reason
    where: Reason | None = None
    next_step: Reason | None = None
    type: Annotated[str, StringConstraints(max_length=256)] | None = None
    details: Annotated[dict[str, JsonValue], Field(max_length=4096)] = {}

    @classmethod
    def of(cls, error: NerveError, *, type: str | None = None) -> "Failure":
        """Of any error, however hostile its text: the failure itself must be recorded."""
        return cls(
            code=error.code,
            message=_clipped(error.message) or error.code,
            where=_clipped(error.where) or None,
            next_step=_clipped(error.next_step) or None,
            type=_clipped(type or "")[:256] or None,
            details=_details(error),
        )


def _clipped(text: str) -> str:
    return printable(str(text))[:REASON_MAX]


def _details(error: NerveError) -> dict[str, JsonValue]:
    try:
        details = check_value(dict(error.details), "details")
    except InvalidJSON as fault:
        return {"placeholder": f"details_{fault.reason}"}
    assert isinstance(details, dict)
    if len(canonical_bytes(details)) > DETAILS_BYTES_MAX:
        return {"placeholder": "details_too_large"}
    return details


class ExecutionResult(Wire):
    """What a tool said: content for people and models, a value, and what it stated about itself.

    `placeholder` is the code of why the true result could not be stored; the effect is there all
    the same, so such a result belongs to SUCCEEDED.
    """

    content: tuple[Part, ...] = ()
    value: JsonValue = None
    metadata: dict[str, JsonValue] = {}
    stated: Code = "success"
    placeholder: Code | None = None
    failure: Failure | None = None
    output: OutputSeal | None = None

    @property
    def text(self) -> str:
        """The content's text; else the value, as text or canonical JSON; else the failure's."""
        if self.content:
            return text_of(self.content)
        if self.failure is not None:
            return self.failure.message
        return self.value if isinstance(self.value, str) else canonical_bytes(self.value).decode()


def value_result(value: object, *, bytes_max: int = RESULT_BYTES_MAX) -> ExecutionResult:
    """The result of a tool that returned `value`, or a placeholder where it cannot be stored."""
    try:
        checked = check_value(value, "/result")
        size = len(canonical_bytes(checked))
        if size > bytes_max:
            step = "Return less, or write it to the output"
            raise TooLarge(
                f"a result of {size} bytes; the limit is {bytes_max}",
                where="/result",
                next_step=step,
            )
    except (InvalidJSON, TooLarge) as error:
        return placeholder_result(error)
    return ExecutionResult(value=checked)


def placeholder_result(error: NerveError) -> ExecutionResult:
    """Stands for a result that exists and cannot be stored; the tool did run."""
    reason = error.reason if isinstance(error, InvalidJSON) else error.code
    text = f"The tool ran and its result could not be stored: {error}"
    return ExecutionResult(
        content=(TextPart(text=text),), placeholder=f"result_{reason}", failure=Failure.of(error)
    )


def failed_result(error: NerveError, *, type: str | None = None) -> ExecutionResult:
    return ExecutionResult(stated="error", failure=Failure.of(error, type=type))


_TOLD: Final[Mapping[tuple[ExecutionState, Effect], str]] = {
    (_S.FAILED, Effect.NONE): "The tool failed and changed nothing: {text}",
    (_S.FAILED, Effect.COMPLETED): "The tool took effect and reports a failure: {text}",
    (_S.FAILED, Effect.UNCONFIRMED): (
        "The tool failed and its effect is unconfirmed; it may have happened: {text}"
    ),
    (_S.CANCELLED, Effect.NONE): "The tool was cancelled and changed nothing. {text}",
    (_S.CANCELLED, Effect.COMPLETED): "The tool was cancelled after it took effect. {text}",
    (_S.CANCELLED, Effect.UNCONFIRMED): (
        "The tool was cancelled; its effect is unconfirmed and may have happened. {text}"
    ),
    (_S.UNKNOWN, Effect.UNCONFIRMED): (
        "Whether the tool took effect is unknown; do not assume either. {text}"
    ),
}


def told(state: ExecutionState, effect: Effect, result: ExecutionResult | None) -> str:
    """What a model or a person reads about an outcome; it names the effect where that matters."""
    text = "" if result is None else result.text
    form = _TOLD.get((state, effect))
    return text if form is None else form.format(text=text).strip()
