"""`nerve doctor` for a ledger in a database: reached or why not, what it is, who holds it, what is wrong."""

import dataclasses
from typing import Any

from nerve.brain.ledger.backend import LEDGER
from nerve.common.clock import SystemClock
from nerve.common.logs import redact
from nerve.common.settings import Settings, describe
from nerve.deploy import doctor_broker, stores
from nerve.deploy.databases import address_of
from nerve.deploy.needs import brain_needs
from nerve.deploy.output import Console, day_time
from nerve.protocol.errors import NerveError

WELL = 0
UNWELL = 6
QUEUE_IS_LONG_MS = 60_000
CLOCK_OFFSET_MS = 2_000
FULL_PARTS = 0.9


async def doctor(console: Console, settings: Settings) -> int:
    """Look at the database of `settings` and print it; 6 where something is wrong."""
    address = address_of(settings)
    lines, problems, found = await _looked(settings)
    server = None
    if settings.objects:
        line, problem = await stores.look(settings)
        lines.append(line)
        problems += [] if problem is None else [problem]
    if settings.broker:
        server = await doctor_broker.look(settings, *_for_the_broker(found, settings))
        lines += doctor_broker.lines(server)
        problems += server.problems
    shown = [
        dataclasses.asdict(each) | {"value": redact(str(each.value))} for each in describe(settings)
    ]
    lines += [f"  {each['variable']:<34} {each['value']}  {each['about']}" for each in shown]
    lines += [f"Wrong: {problem}" for problem in problems] or ["Nothing is wrong."]
    answer = {
        "database": str(address),
        "found": found,
        "server": server,
        "settings": shown,
        "problems": problems,
    }
    console.answer(answer, "\n".join(lines))
    return UNWELL if problems else WELL


async def _looked(settings: Settings) -> tuple[list[str], list[str], dict[str, Any]]:
    from nerve.common.sql.postgres import reached
    from nerve.common.sql.postgres_source import UrlSource
    from nerve.common.sql.postgres_survey import survey

    address = address_of(settings)
    try:
        async with reached():
            found = await survey(UrlSource(address))
    except NerveError as error:
        return [f"Database {address}: not reached"], [str(error)], {}
    now = SystemClock().now_ms()
    offset = found.now - now
    lines = [
        f"Database {address}: PostgreSQL {found.version}, schema {found.schema},"
        f" {found.connections} of {found.connections_max} connections, clock {offset:+} ms",
        "Ledger: none yet; `nerve migrate up --room brain|hands` makes it"
        if found.meta is None
        else f"Ledger: {found.meta.room} {found.meta.id}, schema {found.meta.version},"
        f" epoch {found.meta.epoch}, {found.outbox} message(s) in the outbox",
    ]
    lines += [
        f"Host {host.id}: {host.role}, {host.state}, pid {host.pid},"
        f" {'its session holds the lock' if host.held else 'no session holds its lock'}"
        for host in found.hosts
    ]
    return lines, _problems(found, now, offset), dataclasses.asdict(found)


def _for_the_broker(found: dict[str, Any], settings: Settings) -> tuple[list[str], int | None]:
    """The topic of a Brain's updates; of Hands only a route would tell theirs."""
    meta = found.get("meta")
    if meta is None or meta["room"] != LEDGER:
        return [], found.get("outbox_oldest_at")
    return brain_needs(settings.deployment, meta["id"], ()).all, found.get("outbox_oldest_at")


def _problems(
    found: Any, now: int, offset: int
) -> list[str]:  # RemoteSurvey, loaded with the driver
    problems: list[str] = []
    if not found.durable:
        problems.append(
            "the server does not flush its commits (fsync or synchronous_commit is off): an"
            " acknowledged commit may be lost with power; set both on"
        )
    if found.connections >= FULL_PARTS * found.connections_max:
        problems.append(
            f"{found.connections} of {found.connections_max} connections are in use;"
            " a ledger needs 5 a host: raise max_connections"
        )
    if abs(offset) > CLOCK_OFFSET_MS:
        problems.append(f"its clock is {offset} ms from ours; run a time service on both")
    if found.hosts and not any(host.held for host in found.hosts):
        problems.append("no host of it holds a session: all of them are gone; start one")
    problems += found.notes
    if found.quarantined:
        problems.append(f"{found.quarantined} message(s) are quarantined")
    oldest = found.outbox_oldest_at
    if oldest is not None and now - oldest > QUEUE_IS_LONG_MS:
        problems.append(
            f"{found.outbox} message(s) wait in the outbox since {day_time(oldest)};"
            " no host of it runs, or the broker is away"
        )
    return problems
