"""What Hands knows of one execution, and what its host's death does to it.

Cancel requested, attempt, owner and token are facts beside the state: after a restart they tell a
tombstone from a tool that may have run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nerve.protocol.execution import MOVES, Effect, ExecutionState, can_move

ATTEMPTS_MAX: Final = 32

FINISHABLE: Final = frozenset(
    state
    for state in ExecutionState
    if not state.is_terminal and ExecutionState.SUCCEEDED in MOVES[state]
)
"""What an owner may end with a result of its tool."""

STARTABLE: Final = frozenset(
    state
    for state in ExecutionState
    if not state.is_terminal and ExecutionState.STARTED in MOVES[state]
)
"""What waits for a start where nobody owns it: a first one, or another one after a lost host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    id: str
    state: ExecutionState
    effect: Effect
    attempt: int
    host: str | None
    token: int
    epoch: int
    repeatable: bool
    cancel_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Where an execution goes, and how that is explained."""

    state: ExecutionState
    effect: Effect
    code: str | None = None
    reason: str | None = None

    def of(self, record: Record, *, reconciling: bool = False) -> "Move":
        """This move, proven legal for `record`."""
        assert can_move(record.state, self.state, reconciling=reconciling), (record, self)
        return self


def lost(record: Record) -> Move | None:
    """What becomes of an execution whose owner is gone; None where it was not running.

    A tool that may have started is started again only where its binding says that this is safe.
    """
    if record.state not in FINISHABLE:
        return None
    if record.repeatable and record.cancel_requested:
        return Move(
            state=ExecutionState.CANCELLED,
            effect=Effect.UNCONFIRMED,
            code="cancelled",
            reason="its host died after a cancel was requested, and it was not started again",
        ).of(record)
    if record.repeatable and record.attempt < ATTEMPTS_MAX:
        return Move(state=ExecutionState.RECOVERING, effect=Effect.UNCONFIRMED)
    code, reason = (
        ("attempts_exhausted", f"its host died in each of {record.attempt} attempts")
        if record.repeatable
        else ("host_lost", "its host died while the tool may have been running")
    )
    return Move(
        state=ExecutionState.UNKNOWN, effect=Effect.UNCONFIRMED, code=code, reason=reason
    ).of(record)


def stale(record: Record, *, epoch: int, repeatable: bool) -> Move | None:
    """What stands in the way of a start: a ledger restored since the admission may have lost one."""
    if record.epoch == epoch or repeatable:
        return None
    return Move(
        state=ExecutionState.UNKNOWN,
        effect=Effect.UNCONFIRMED,
        code="ledger_restored",
        reason="the ledger was restored or moved since the admission, so a start may be missing in it",
    ).of(record)


def doubtful(
    *, began_at: int, epoch: int, issued_at: int, known: bool | None, repeatable: bool
) -> Move | None:
    """What a ledger must say of a command that it sees for the first time and may once have run.

    `known` says whether the sender, when it issued the command, knew this very ledger and epoch on the
    route; None where it knew none. A ledger that is older than the command and was never restored has
    seen everything that was sent since.
    """
    # A first command names no ledger: where this is the first life of ours, nothing was before it.
    sure = known is True or (known is None and epoch == 1)
    if sure or repeatable or began_at <= issued_at:
        return None
    return Move(
        state=ExecutionState.UNKNOWN,
        effect=Effect.UNCONFIRMED,
        code="ledger_replaced",
        reason="the command was meant for a ledger that was lost or restored since: it may have run",
    )


def sql_states(states: Iterable[ExecutionState]) -> str:
    """The members as a SQL list of literals: partial indexes need them written out."""
    return ", ".join(f"'{state}'" for state in sorted(states))
