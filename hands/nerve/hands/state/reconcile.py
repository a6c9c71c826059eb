"""The only way out of UNKNOWN: once, by a person or program that verified what happened."""

from nerve.hands.state.record import Move, Record
from nerve.protocol.errors import WrongState
from nerve.protocol.execution import Effect, ExecutionState, can_move, check_effect


def reconcile(record: Record, state: ExecutionState, effect: Effect) -> Move:
    """The verified end of `record`. Raises WrongState where it is not UNKNOWN, or is no end."""
    if not can_move(record.state, state, reconciling=True):
        raise WrongState(
            f"execution {record.id} is {record.state} and cannot be reconciled to {state}",
            where="execution",
            next_step="only an UNKNOWN outcome can be reconciled, to SUCCEEDED, FAILED or CANCELLED",
        )
    check_effect(state, effect)
    return Move(state=state, effect=effect, code="reconciled")
