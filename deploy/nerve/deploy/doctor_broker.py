"""`nerve doctor` for a broker with a server: reached or why not, its limits, what it lacks, how long it keeps."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from nerve.common.broker.served import Lack, Limit, Served
from nerve.common.clock import SystemClock
from nerve.common.logs import redact
from nerve.common.settings import Settings
from nerve.deploy.addresses import broker_at
from nerve.protocol.errors import BrokerUnavailable, NerveError

SECONDS = 15.0


@final
@dataclass(slots=True, kw_only=True)
class BrokerReport:
    """One broker. `reason` says why it was not reached."""

    address: str
    reached: bool = False
    reason: str | None = None
    limits: list[Limit] = field(default_factory=list[Limit])
    missing: list[Lack] = field(default_factory=list[Lack])
    retention_seconds: float | None = None
    problems: list[str] = field(default_factory=list[str])


async def look(
    settings: Settings, topics: Sequence[str], oldest_unsent_ms: int | None
) -> BrokerReport:
    """`oldest_unsent_ms`: since when the oldest message of our outboxes waits."""
    clock = SystemClock()
    try:
        broker = broker_at(settings.broker, settings, clock)
    except NerveError as error:
        report = BrokerReport(address=redact(settings.broker), reason=str(error))
        report.problems.append(str(error))
        return report
    assert isinstance(broker, Served)
    report = BrokerReport(address=broker.shown)
    try:
        async with asyncio.timeout(SECONDS):
            await _ask(broker, topics, report)
    except (BrokerUnavailable, TimeoutError) as error:
        report.reason = str(error) or f"no answer within {SECONDS:g} s"
        report.problems.append(f"the broker {report.address} is not reached: {report.reason}")
    finally:
        await broker.close()
    _judge(report, oldest_unsent_ms, clock.now_ms())
    return report


async def _ask(broker: Served, topics: Sequence[str], report: BrokerReport) -> None:
    report.limits = await broker.limits(topics)
    report.reached = True
    report.missing = await broker.lacking(topics, reads=(), create=False)
    kept = await broker.retention_ms(topics)
    report.retention_seconds = None if kept is None else kept / 1000
    report.problems += [
        f"the broker {report.address} lacks {each.what}; have an operator run: {each.step}"
        for each in report.missing
    ]


def _judge(report: BrokerReport, oldest: int | None, now: int) -> None:
    kept = report.retention_seconds
    if oldest is None or kept is None:
        return
    waiting = (now - oldest) / 1000
    if waiting > kept:
        report.problems.append(
            f"the oldest unsent message waits for {waiting:.0f} s, and {report.address} keeps a"
            f" message for {kept:.0f} s: what went before it may be gone already, and is asked for"
            " again; keep messages longer there, or bring back who sends"
        )


def lines(report: BrokerReport) -> list[str]:
    if not report.reached:
        return [f"Broker {report.address}: not reached"]
    kept = report.retention_seconds
    keeps = "until they are read" if kept is None else f"for {kept:.0f} s"
    return [
        f"Broker {report.address}: reached, it keeps messages {keeps}",
        *(
            f"  {each.name}: {'unknown' if each.value is None else each.value} ({each.about})"
            for each in report.limits
        ),
    ]
