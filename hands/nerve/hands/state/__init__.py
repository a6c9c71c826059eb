"""The laws of an execution as pure functions: no I/O, no clock, `now` is an argument."""

from nerve.hands.state.cancel import Cancelling, cancel
from nerve.hands.state.reconcile import reconcile
from nerve.hands.state.record import (
    ATTEMPTS_MAX,
    FINISHABLE,
    STARTABLE,
    Move,
    Record,
    doubtful,
    lost,
    stale,
)

__all__ = [
    "ATTEMPTS_MAX",
    "Cancelling",
    "FINISHABLE",
    "Move",
    "Record",
    "STARTABLE",
    "cancel",
    "doubtful",
    "lost",
    "reconcile",
    "stale",
]
