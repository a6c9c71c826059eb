"""The life of a Turn: one phase, and independent facts beside it (cancel, pause, retry, waits)."""

from collections.abc import Mapping
from enum import StrEnum


class TurnPhase(StrEnum):
    """QUEUED: behind another Turn, or not looked at yet. RUNNING: a Run advances it. WAITING: for
    results or a time. SETTLING: it will end (cancelled or failed) as soon as what it started outside
    is known. COMPLETED, FAILED and CANCELLED are terminal."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    SETTLING = "SETTLING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Settle(StrEnum):
    """Why a Turn is SETTLING, and so how it will end."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    LIMIT = "limit"


TERMINAL = frozenset({TurnPhase.COMPLETED, TurnPhase.FAILED, TurnPhase.CANCELLED})

TRANSITIONS: Mapping[TurnPhase, frozenset[TurnPhase]] = {
    TurnPhase.QUEUED: frozenset({TurnPhase.RUNNING, TurnPhase.CANCELLED}),
    TurnPhase.RUNNING: frozenset(
        {
            TurnPhase.RUNNING,
            TurnPhase.WAITING,
            TurnPhase.SETTLING,
            TurnPhase.COMPLETED,
            TurnPhase.FAILED,
            TurnPhase.CANCELLED,
        }
    ),
    TurnPhase.WAITING: frozenset({TurnPhase.RUNNING, TurnPhase.SETTLING}),
    TurnPhase.SETTLING: frozenset({TurnPhase.SETTLING, TurnPhase.FAILED, TurnPhase.CANCELLED}),
    TurnPhase.COMPLETED: frozenset(),
    TurnPhase.FAILED: frozenset(),
    TurnPhase.CANCELLED: frozenset(),
}


def settled_as(settle: Settle) -> TurnPhase:
    """The terminal phase of a Turn that settles for this reason."""
    return TurnPhase.CANCELLED if settle is Settle.CANCELLED else TurnPhase.FAILED
