"""Which hosts of a directory really live: a row that says LIVE may belong to a process that is gone."""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nerve.common import process
from nerve.common.place import StateDirectory
from nerve.common.sql.survey import HostRow, survey


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """One host. `alive` is what its lock and its process show now; `offers` what it registered."""

    id: str
    role: str
    state: str
    pid: int
    lock: str
    alive: bool
    heartbeat: int
    offers: Any  # JSON of the room
    registered_at: int


def present(place: StateDirectory, ledger: str) -> list[Present]:
    """Every host of one ledger that was not released, dead ones too; none where it is not there."""
    if ledger not in place.ledgers:
        return []
    return seen(place.locks, survey(place.ledger(ledger)).hosts)


def seen(locks: Path, rows: Sequence[HostRow]) -> list[Present]:
    """What lock and process of each row show."""
    return [_present(locks, row) for row in rows]


def hands_of(place: StateDirectory, route: str) -> list[Present]:
    """Living Hands of a route on this machine."""
    return [each for each in present(place, f"hands-{route}") if each.alive]


def brains_of(place: StateDirectory, definition: str) -> list[Present]:
    """Living Brains that take Turns of this definition."""
    return [
        each
        for each in present(place, "brain")
        if each.alive and definition in each.offers.get("definitions", ())
    ]


def _present(locks: Path, row: HostRow) -> Present:
    mark = process.ProcessMark(pid=row.pid, started=row.process_started, place=row.boot)
    lock = _lock(locks / f"{row.id}.lock")
    alive = process.is_same(mark) if lock == "free" else not process.proven_gone(mark)
    return Present(
        id=row.id,
        role=row.role,
        state=row.state,
        pid=row.pid,
        lock=lock,
        alive=alive,
        heartbeat=row.counter,
        offers=json.loads(row.offers),
        registered_at=row.registered_at,
    )


def _lock(path: Path) -> str:
    """Whether somebody holds the lock of a host; a look takes it for an instant, shared."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "unseen"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return "free"
    except OSError:
        return "held"
    finally:
        os.close(descriptor)
