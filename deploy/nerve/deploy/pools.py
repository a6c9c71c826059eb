"""`nerve pools`: of each route the replicas, what is queued, admitted and running, and how old the oldest is."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from nerve.brain.ledger.census import asked
from nerve.common.broker.backlog import waiting_on
from nerve.common.broker.port import Broker
from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.clock import SystemClock
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.sql import Row
from nerve.common.sql.sqlite import Reader
from nerve.common.wakeups import LocalWakeups
from nerve.deploy.addresses import broker_at
from nerve.deploy.client import existing
from nerve.deploy.databases import address_of, brain_backend, hands_storage
from nerve.deploy.output import Console
from nerve.deploy.presence import present
from nerve.hands.ledger.pool import PoolCensus, pool
from nerve.protocol.errors import NotFound, Unavailable
from nerve.protocol.topics import commands

DONE = 0
HANDS = "hands-"


@final
@dataclass(slots=True, kw_only=True)
class PoolView:
    """One route. None where what was looked at cannot tell."""

    route: str
    replicas: int | None = None
    gone: int = 0
    slots: int | None = None
    queued: int | None = None
    waiting: int | None = None
    waiting_oldest_seconds: float | None = None
    running: int | None = None
    running_oldest_seconds: float | None = None
    unknown: int | None = None
    asked: dict[str, int] = field(default_factory=dict[str, int])
    """What a Brain waits for, by what it knows of it."""
    asked_oldest_seconds: float | None = None


async def pools(directory: Path, console: Console, settings: Settings) -> int:
    """Print every pool of a directory, or the one of a database."""
    now = SystemClock().now_ms()
    views: dict[str, PoolView] = {}
    if settings.database:
        await _of_database(settings, views, now)
    else:
        _of_directory(existing(directory), views, now)
    await _count_queues(directory, settings, views)
    found = [views[route] for route in sorted(views)]
    text = "\n".join(line for view in found for line in lines(view))
    console.answer({"pools": found}, text or "No Hands and no Brain have ever run here.")
    return DONE


def _of_directory(place: StateDirectory, views: dict[str, PoolView], now: int) -> None:
    for name in place.ledgers:
        reader = Reader(place.ledger(name))
        try:
            if name.startswith(HANDS):
                alive = {each.id for each in present(place, name) if each.alive}
                _fill(_view(views, name.removeprefix(HANDS)), reader.read(pool), alive, now)
            elif name == "brain":
                _fill_asked(views, reader.read(asked), now)
        finally:
            reader.close()


async def _of_database(settings: Settings, views: dict[str, PoolView], now: int) -> None:
    from nerve.common.sql.postgres import reached
    from nerve.common.sql.postgres_source import UrlSource
    from nerve.common.sql.postgres_survey import survey

    address = address_of(settings)
    async with reached():
        found = await survey(UrlSource(address))
    if found.meta is None:
        raise NotFound(
            f"there is no ledger in {address}",
            where="--database",
            next_step="`nerve brain` and `nerve hands` make theirs when they start",
        )
    if found.meta.room == "brain":
        async with await brain_backend(settings, None, create=False) as brain:
            _fill_asked(views, await brain.ledger.read(asked), now)
        return
    alive = {host.id for host in found.hosts if host.held}
    routes = [host.role.partition(":")[2] for host in found.hosts]
    storage = hands_storage(settings, patient=False)
    backend = await storage.open("", clock=SystemClock(), observe=None, create=False)
    try:
        census = await backend.ledger.read(pool)
    finally:
        await backend.close()
    _fill(_view(views, routes[-1] if routes else "hands"), census, alive, now)


def _view(views: dict[str, PoolView], route: str) -> PoolView:
    return views.setdefault(route, PoolView(route=route))


def _fill(view: PoolView, census: PoolCensus, alive: set[str], now: int) -> None:
    living = [each for each in census.replicas if each.id in alive]
    view.replicas, view.gone = len(living), len(census.replicas) - len(living)
    view.slots = sum(each.slots or 0 for each in living)
    view.waiting, view.running, view.unknown = census.waiting, census.running, census.unknown
    view.waiting_oldest_seconds = _age(census.waiting_since, now)
    view.running_oldest_seconds = _age(census.running_since, now)


def _fill_asked(views: dict[str, PoolView], rows: Sequence[Row], now: int) -> None:
    for row in rows:
        view = _view(views, row["route"])
        view.asked[row["outcome"]] = row["number"]
        age = _age(row["since"], now)
        view.asked_oldest_seconds = max(age or 0.0, view.asked_oldest_seconds or 0.0)


def _age(since: int | None, now: int) -> float | None:
    return None if since is None else max(0.0, (now - since) / 1000)


async def _count_queues(directory: Path, settings: Settings, views: Mapping[str, PoolView]) -> None:
    """A broker that is away leaves its column empty: the ledgers are shown all the same."""
    topics = {commands(settings.deployment, route): route for route in views}
    async with _broker(directory, settings) as broker:
        if broker is None:
            return
        try:
            found = await waiting_on(broker, list(topics))
        except Unavailable:
            return
    for topic, number in found.items():
        views[topics[topic]].queued = number


@asynccontextmanager
async def _broker(directory: Path, settings: Settings) -> AsyncGenerator[Broker | None]:
    broker: Broker
    if settings.broker:
        broker = broker_at(settings.broker, settings, SystemClock())
    elif settings.database or not (directory / "broker.db").exists():
        yield None
        return
    else:
        broker = SqliteBroker(directory, LocalWakeups())
    try:
        await broker.open()
        yield broker
    finally:
        await broker.close()


def lines(view: PoolView) -> list[str]:
    """A pool for people."""
    shown = [f"Route {view.route}: {_replicas(view)}"]
    parts: list[str] = []
    if view.queued is not None:
        parts.append(f"{view.queued} on the broker")
    if view.waiting is not None:
        parts.append(f"{view.waiting} wait for a slot{_since(view.waiting_oldest_seconds)}")
    if view.running is not None:
        parts.append(f"{view.running} run{_since(view.running_oldest_seconds)}")
    if view.unknown:
        parts.append(f"{view.unknown} are UNKNOWN")
    if parts:
        shown.append(f"  {', '.join(parts)}")
    if view.asked:
        known = ", ".join(f"{number} {outcome}" for outcome, number in sorted(view.asked.items()))
        shown.append(f"  the Brain waits for {known}{_since(view.asked_oldest_seconds)}")
    return shown


def _replicas(view: PoolView) -> str:
    if view.replicas is None:
        return "its replicas are not seen from here"
    noun = "replica" if view.replicas == 1 else "replicas"
    gone = f", {view.gone} gone and not released yet" if view.gone else ""
    return f"{view.replicas} {noun} alive with {view.slots} slots{gone}"


def _since(seconds: float | None) -> str:
    return "" if seconds is None else f" (oldest {seconds:.1f} s)"
