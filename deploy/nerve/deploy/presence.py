"""Which hosts of a directory really live: a row that says LIVE may belong to a process that is gone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nerve.common import process
from nerve.common.clock import SystemClock
from nerve.common.lease import Hosts, HostView, LockSight
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.sql import SqliteLedger, Tx, open_sqlite


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """One host. `alive` is what lock and process show now; `offers` what it registered."""

    id: str
    role: str
    state: str
    pid: int
    lock: str
    alive: bool
    offers: Any  # JSON of the room
    registered_at: int


def is_alive(view: HostView) -> bool:
    if view.lock is LockSight.FREE:
        return process.is_same(view.mark)
    return not process.proven_gone(view.mark)


async def present_in(ledger: SqliteLedger, place: StateDirectory) -> list[Present]:
    """Every host of one ledger that was not released, dead ones too."""
    hosts = Hosts(
        ledger,
        place.locks,
        role="look",
        clock=SystemClock(),
        settings=Settings(),
        also=_nothing,
    )
    return [
        Present(
            id=view.id,
            role=view.role,
            state=view.state,
            pid=view.mark.pid,
            lock=view.lock.value,
            alive=is_alive(view),
            offers=view.offers,
            registered_at=view.registered_at,
        )
        for view in await hosts.live()
    ]


async def hands_of(place: StateDirectory, route: str) -> list[Present]:
    """Living Hands of a route on this machine; empty where its ledger does not exist yet."""
    from nerve.hands.ledger import HANDS_SCHEMA

    name = f"hands-{route}"
    if name not in place.ledgers:
        return []
    path: Path = place.ledger(name)
    ledger = await open_sqlite(path, HANDS_SCHEMA, clock=SystemClock(), create=False)
    try:
        return [each for each in await present_in(ledger, place) if each.alive]
    finally:
        await ledger.close()


def offering(hosts: Sequence[Present], definition: str) -> list[Present]:
    """Living Brains that take Turns of this definition."""
    return [
        each
        for each in hosts
        if each.alive and each.role == "brain" and definition in each.offers.get("definitions", ())
    ]


async def _nothing(tx: Tx, host: str, now: int) -> None:
    """A reader releases nobody."""
