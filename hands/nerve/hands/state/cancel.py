"""A wish to end an execution: confirmed at once where nothing started, otherwise only requested."""

from dataclasses import dataclass

from nerve.hands.state.record import Move, Record
from nerve.protocol.execution import Effect, ExecutionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling:
    """`move` is the confirmed end; without one the wish is recorded (`requested`) or changes nothing."""

    move: Move | None = None
    requested: bool = False


TOMBSTONE = Move(
    state=ExecutionState.CANCELLED,
    effect=Effect.NONE,
    code="cancelled",
    reason="cancelled before it was started",
)


def cancel(record: Record) -> Cancelling:
    if record.state.is_terminal:
        return Cancelling()
    if record.state is ExecutionState.ADMITTED:
        return Cancelling(move=TOMBSTONE.of(record))
    if record.state is ExecutionState.RECOVERING and record.host is None:
        ended = Move(
            state=ExecutionState.CANCELLED,
            effect=Effect.UNCONFIRMED,
            code="cancelled",
            reason="cancelled while it waited for another start; an earlier one may have had its effect",
        )
        return Cancelling(move=ended.of(record))
    return Cancelling(requested=not record.cancel_requested)
