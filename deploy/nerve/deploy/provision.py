"""`nerve provision`: make what an app needs of its broker, or say what is missing and who must do what."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from nerve.brain.ledger.backend import LEDGER, LocalBackend
from nerve.common.broker.served import Lack, Served
from nerve.common.clock import SystemClock
from nerve.common.place import MARKER, StateDirectory
from nerve.common.settings import Settings
from nerve.common.sql.migrate import look
from nerve.deploy.addresses import broker_at
from nerve.deploy.app import App
from nerve.deploy.databases import brain_backend
from nerve.deploy.needs import Needs, asked_routes, brain_needs, hands_needs, steps
from nerve.deploy.output import Console
from nerve.protocol.errors import BadInput

DONE = 0
MISSING = 4


@final
@dataclass(slots=True, kw_only=True)
class Provisioned:
    """What was asked for and what is still missing."""

    broker: str
    topics: list[str]
    missing: list[Lack] = field(default_factory=list[Lack])
    notes: list[str] = field(default_factory=list[str])


async def provision(
    app: App,
    directory: Path,
    *,
    console: Console,
    settings: Settings,
    route: str | None = None,
    check: bool = False,
) -> int:
    """Print each topic that stands and each thing that is missing; 4 where something is."""
    if not settings.broker:
        raise BadInput(
            "the directory's own broker needs nothing provisioned",
            where="--broker",
            next_step="name a server: --broker amqp://... or rocketmq://...",
        )
    broker = broker_at(settings.broker, settings, SystemClock())
    try:
        if not isinstance(broker, Served):
            raise TypeError("every broker with an address can be provisioned")
        found = Provisioned(broker=broker.shown, topics=[])
        needs = await _needs(app, directory, settings, found, route=route, check=check)
        found.topics = needs.all
        found.missing = await broker.lacking(needs.all, reads=needs.reads, create=not check)
    finally:
        await broker.close()
    console.answer(found, "\n".join(_lines(found)))
    return MISSING if found.missing or found.notes else DONE


async def _needs(
    app: App,
    directory: Path,
    settings: Settings,
    found: Provisioned,
    *,
    route: str | None,
    check: bool,
) -> Needs:
    """Of both sides of the file: whoever provisions need not be one of them."""
    if route is not None:
        return hands_needs(settings.deployment, [route])
    needs = hands_needs(settings.deployment, app.routes())
    if not app.agents:
        return needs
    cell = await _cell(directory, settings, make=not check)
    if cell is None:
        found.notes.append(
            "the topic of the Brain's updates is named after its ledger, and there is no ledger yet:"
            " `nerve provision` without --check makes it, or the first start of `nerve brain`"
        )
    return needs + brain_needs(settings.deployment, cell, asked_routes(app.agents))


async def _cell(directory: Path, settings: Settings, *, make: bool) -> str | None:
    """The id of the Brain's ledger."""
    if settings.database:
        async with await brain_backend(settings, None, create=make) as backend:
            return backend.ledger.identity.id
    if make:
        async with LocalBackend.open(directory) as local:
            return local.ledger.identity.id
    if not (directory / MARKER).exists():
        return None
    place = StateDirectory.open(directory, create=False)
    meta = look(place.ledger(LEDGER)) if LEDGER in place.ledgers else None
    return None if meta is None else meta.id


def _lines(found: Provisioned) -> list[str]:
    lacking = {each.topic for each in found.missing}
    lines = [f"{found.broker}: {each} stands" for each in found.topics if each not in lacking]
    lines += [f"{found.broker}: {each.what} is missing" for each in found.missing]
    lines += [f"Note: {note}." for note in found.notes]
    if found.missing:
        lines += ["To be run by whoever may:", steps(found.missing)]
    return lines
