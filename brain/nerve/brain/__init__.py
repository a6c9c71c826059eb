"""Brain: runs agents, and commits every decision of theirs before anybody hears of it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nerve.brain.handles import Session, Thread, Turn
    from nerve.brain.ledger.backend import LocalBackend, SessionBackend
    from nerve.brain.ledger.postgres_backend import PostgresBackend
    from nerve.brain.runtime import DurableRuntime
    from nerve.brain.watch import EventPage, TurnResult
    from nerve.brain.why import TurnStatus

_PLACES = {
    "DurableRuntime": "nerve.brain.runtime",
    "EventPage": "nerve.brain.watch",
    "LocalBackend": "nerve.brain.ledger.backend",
    "PostgresBackend": "nerve.brain.ledger.postgres_backend",
    "Session": "nerve.brain.handles",
    "SessionBackend": "nerve.brain.ledger.backend",
    "Thread": "nerve.brain.handles",
    "Turn": "nerve.brain.handles",
    "TurnResult": "nerve.brain.watch",
    "TurnStatus": "nerve.brain.why",
}

__all__ = [
    "DurableRuntime",
    "EventPage",
    "LocalBackend",
    "PostgresBackend",
    "Session",
    "SessionBackend",
    "Thread",
    "Turn",
    "TurnResult",
    "TurnStatus",
]


def __getattr__(name: str) -> Any:  # a module attribute of whichever kind the name has
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
