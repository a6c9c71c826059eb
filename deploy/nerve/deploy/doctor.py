"""`nerve doctor`: what this machine and directory are like, what is wrong, and what mends it."""

import dataclasses
import platform
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from nerve.brain.ledger.backend import LEDGER
from nerve.common import writelock
from nerve.common.broker.rocketmq_stubs import refuse_the_other
from nerve.common.broker.sqlite import Depth, SqliteBroker
from nerve.common.clock import SystemClock
from nerve.common.logs import redact
from nerve.common.place import Adoption, StateDirectory, adopt
from nerve.common.settings import Settings, Shown, describe
from nerve.common.sql import open_sqlite
from nerve.common.sql.lives import recognize
from nerve.common.sql.survey import Survey, raise_epoch, survey
from nerve.common.wakeups import LocalWakeups
from nerve.deploy import doctor_broker, stores
from nerve.deploy.client import existing
from nerve.deploy.doctor_broker import BrokerReport
from nerve.deploy.needs import Needs, brain_needs, hands_needs
from nerve.deploy.output import Console, day_time
from nerve.deploy.presence import Present, seen
from nerve.protocol.errors import BadInput, Conflict, NerveError, NotFound
from nerve.protocol.version import CURRENT

WELL = 0
UNWELL = 6
QUEUE_IS_LONG_MS = 60_000
HANDS = "hands-"


@final
@dataclass(slots=True, kw_only=True)
class LedgerReport:
    """One ledger of the directory; `problem` where it could not be read."""

    name: str
    found: Survey | None = None
    hosts: Sequence[Present] = ()
    problem: str | None = None


@final
@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that `doctor` shows. `problems` are sentences with what mends them."""

    python: str
    sqlite: str
    protocol: str
    directory: str
    ledgers: list[LedgerReport] = field(default_factory=list[LedgerReport])
    broker: list[Depth] = field(default_factory=list[Depth])
    server: BrokerReport | None = None
    """The broker that the settings name, where they name one."""
    objects: str | None = None
    """The object store that the settings name, where they name one."""
    settings: list[Any] = field(default_factory=list[Any])
    problems: list[str] = field(default_factory=list[str])


async def doctor(directory: Path, console: Console, settings: Settings) -> int:
    """Look at everything and print it; 6 where something keeps work from moving."""
    place = existing(directory)
    report = Report(
        python=f"{platform.python_version()} ({sys.executable})",
        sqlite=sqlite3.sqlite_version,
        protocol=str(CURRENT),
        directory=str(place.path),
        settings=[_shown(each) for each in describe(settings)],
    )
    now = SystemClock().now_ms()
    for name in place.ledgers:
        report.ledgers.append(_ledger(place, name, report.problems, now))
    if place.broker.exists():
        report.broker = await _depths(place, settings)
    _judge_queues(report, now)
    _judge_packages(report)
    if settings.objects:
        report.objects, problem = await stores.look(settings)
        report.problems += [] if problem is None else [problem]
    if settings.broker:
        report.server = await doctor_broker.look(settings, *_for_the_broker(report, settings))
        report.problems += report.server.problems
    console.answer(report, "\n".join(_lines(report, now)))
    return UNWELL if report.problems else WELL


def _ledger(place: StateDirectory, name: str, problems: list[str], now: int) -> LedgerReport:
    try:
        found = survey(place.ledger(name))
    except NerveError as error:
        problems.append(str(error))
        return LedgerReport(name=name, problem=str(error))
    hosts = seen(place.locks, found.hosts)
    problems += [
        f"the {each.role} host {each.id} (pid {each.pid}) is gone and not released yet;"
        " any host of its kind that runs releases it within a second"
        for each in hosts
        if not each.alive and not any(other.alive for other in hosts)
    ]
    frozen = writelock.holder(found.path)
    if frozen is not None and writelock.is_stopped(frozen):
        problems.append(
            f"nobody can write to {name}: {writelock.described(found.path)}; a host of it ends that"
            f" process after its lease, and `kill -CONT {frozen}` lets it go on before"
        )
    problems += found.notes
    if found.quarantined:
        problems.append(f"{found.quarantined} message(s) are quarantined in {name}")
    if found.outbox_oldest_at is not None and now - found.outbox_oldest_at > QUEUE_IS_LONG_MS:
        problems.append(
            f"{found.outbox} message(s) wait in {name} since {day_time(found.outbox_oldest_at)};"
            " no host of it runs, or nobody takes them"
        )
    return LedgerReport(name=name, found=found, hosts=hosts)


async def _depths(place: StateDirectory, settings: Settings) -> list[Depth]:
    broker = SqliteBroker(place.path, LocalWakeups(), publish_seconds=settings.publish_seconds)
    await broker.open()
    try:
        return broker.depths()
    finally:
        await broker.close()


def _for_the_broker(report: Report, settings: Settings) -> tuple[list[str], int | None]:
    """The topics that the ledgers here use, and since when the oldest unsent message waits."""
    needs, oldest = Needs(), list[int]()
    for ledger in report.ledgers:
        if ledger.found is None:
            continue
        if ledger.found.outbox_oldest_at is not None:
            oldest.append(ledger.found.outbox_oldest_at)
        if ledger.name == LEDGER:
            needs += brain_needs(settings.deployment, ledger.found.id, ())
        else:
            needs += hands_needs(settings.deployment, [ledger.name.removeprefix(HANDS)])
    return needs.all, min(oldest, default=None)


def _judge_packages(report: Report) -> None:
    try:
        refuse_the_other()
    except BadInput as error:
        report.problems.append(str(error))


def _judge_queues(report: Report, now: int) -> None:
    for depth in report.broker:
        if now - depth.oldest_ms > QUEUE_IS_LONG_MS:
            report.problems.append(
                f"{depth.envelopes} message(s) wait in the queue {depth.topic} since"
                f" {day_time(depth.oldest_ms)}: nobody consumes it"
            )


def _lines(report: Report, now: int) -> list[str]:
    lines = [
        f"Python {report.python}, SQLite {report.sqlite}, protocol {report.protocol}",
        f"State directory {report.directory}: it is the one its marker names",
    ]
    for ledger in report.ledgers:
        lines += _ledger_lines(ledger, now)
    lines += [
        f"Queue {depth.topic}: {depth.envelopes} message(s), {depth.claimed} being handled,"
        f" oldest {_age(depth.oldest_ms, now)}"
        for depth in report.broker
    ]
    lines += [] if report.server is None else doctor_broker.lines(report.server)
    lines += [] if report.objects is None else [report.objects]
    lines.append("Settings in force (environment variable, value, default):")
    lines += [
        f"  {each['variable']:<34} {each['value']!s:>10}  {each['default']!s:>10}  {each['about']}"
        for each in report.settings
    ]
    if not report.problems:
        return [*lines, "Nothing is wrong."]
    return [*lines, "Problems:", *(f"  {problem}." for problem in report.problems)]


def _ledger_lines(ledger: LedgerReport, now: int) -> list[str]:
    found = ledger.found
    if found is None:
        return [f"Ledger {ledger.name}: {ledger.problem}"]
    lines = [
        f"Ledger {ledger.name}: {found.id} epoch {found.epoch}, schema {found.version}"
        f" (writers since {found.oldest_writer}), {found.size_bytes:,} bytes",
        f"  outbox {found.outbox} (oldest {_age(found.outbox_oldest_at, now)}),"
        f" held {found.held}, quarantined {found.quarantined}"
        f" (oldest {_age(found.inbox_oldest_at, now)}), refused {found.refused}",
    ]
    lines += [
        f"  host {each.id} {each.role} {each.state} pid {each.pid},"
        f" {'alive' if each.alive else 'gone'}, lock {each.lock}, heartbeat {each.heartbeat},"
        f" since {day_time(each.registered_at)}"
        for each in ledger.hosts
    ]
    return lines if ledger.hosts else [*lines, "  no host"]


def _age(at: int | None, now: int) -> str:
    return "-" if at is None else f"{max(0, now - at) / 1000:.1f} s"


def adopt_directory(directory: Path, kind: str, console: Console) -> int:
    """Accept a folder that was moved or copied here; each of its ledgers begins a new epoch."""
    try:
        adoption = Adoption(kind)
    except ValueError:
        known = " or ".join(each.value for each in Adoption)
        raise BadInput(
            f"{ascii(kind)} is no way to adopt", where="--adopt", next_step=f"Say {known}"
        ) from None
    _refuse_running(directory)
    place = adopt(directory)
    for name in place.ledgers:
        _begin_anew(place, name)
    text = f"{place.path} is adopted as {adoption}: its ledgers begin a new epoch."
    console.answer({"directory": place.path, "adopted": adoption, "ledgers": place.ledgers}, text)
    return WELL


def _begin_anew(place: StateDirectory, name: str) -> None:
    """A new epoch, and the file known from now on as the one that stands here."""
    now = SystemClock().now_ms()
    raised = name.startswith(HANDS) and not recognize(place, name, now=now)
    if not raised:
        raise_epoch(place.ledger(name), now=now)


async def forget_ledger(directory: Path, name: str, console: Console) -> int:
    """An operator says that a ledger is lost; a Hands ledger is made anew as one that forgot."""
    place = existing(directory)
    if name not in place.ledgers:
        raise NotFound(
            f"no ledger {name} was ever made in {place.path}",
            where="--forget",
            next_step=f"Those that were: {', '.join(place.ledgers) or 'none'}",
        )
    path = place.path / f"{name}.db"
    if path.exists():
        raise Conflict(
            f"the ledger {path} is still there",
            where="--forget",
            next_step="Move it away first, if what it knows is to be given up",
        )
    place.forget(name)
    if name.startswith(HANDS):
        await _made_again(place, name)
    text = (
        f"{name} is forgotten and begins anew. What may have run is not repeated;"
        " it becomes UNKNOWN and waits for `nerve reconcile`."
    )
    console.answer({"directory": place.path, "forgotten": name}, text)
    return WELL


async def _made_again(place: StateDirectory, name: str) -> None:
    """A second life from its first moment: it must not take an old command for a new one."""
    from nerve.hands.ledger import HANDS_SCHEMA

    clock = SystemClock()
    ledger = await open_sqlite(place.ledger(name), HANDS_SCHEMA, clock=clock, create=True)
    await ledger.close()
    raise_epoch(place.ledger(name), now=clock.now_ms())
    place.made(name)


def _refuse_running(directory: Path) -> None:
    """Read before anything is changed: whoever holds a lock of this very folder still runs."""
    for path in [*directory.glob("brain.db"), *directory.glob("hands-*.db")]:
        for each in seen(directory / "locks", survey(path).hosts):
            if each.alive and each.lock == "held":
                raise Conflict(
                    f"a {each.role} host (pid {each.pid}) runs on {directory}",
                    where="--adopt",
                    next_step="Stop it first",
                )


def _shown(setting: Shown) -> dict[str, Any]:
    """A setting without the secrets that its value may hold."""
    shown = dataclasses.asdict(setting)
    if isinstance(setting.value, str):
        shown["value"] = redact(setting.value)
    return shown
