"""Where a Thread stands: whether its head Turn may run, runs, or waits.

A Thread's head is its oldest unfinished Turn. Only the head moves, so the phase of the Thread is
what hosts look at: READY Threads are found by an index, RUNNING ones have an owner (host, token).
"""

from collections.abc import Mapping
from enum import StrEnum


class ThreadPhase(StrEnum):
    """IDLE: no unfinished Turn. READY: any fitting host may claim it once `ready_at` has come.
    RUNNING: owned. WAITING: the head waits for results, a person or a condition."""

    IDLE = "IDLE"
    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"


TRANSITIONS: Mapping[ThreadPhase, frozenset[ThreadPhase]] = {
    ThreadPhase.IDLE: frozenset({ThreadPhase.READY}),
    ThreadPhase.READY: frozenset({ThreadPhase.RUNNING, ThreadPhase.IDLE}),
    ThreadPhase.RUNNING: frozenset(
        {ThreadPhase.WAITING, ThreadPhase.READY, ThreadPhase.IDLE, ThreadPhase.RUNNING}
    ),
    ThreadPhase.WAITING: frozenset({ThreadPhase.READY, ThreadPhase.RUNNING}),
}


def after_turn(next_turn: str | None) -> ThreadPhase:
    """Where a Thread goes when its head has ended."""
    return ThreadPhase.READY if next_turn is not None else ThreadPhase.IDLE
