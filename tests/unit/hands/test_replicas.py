"""Workers behind a broker: one engine, one ledger, one group, however many replicas there are."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nerve.common.broker import Consumer, MemoryBroker
from nerve.common.broker.port import Credit
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.wakeups import Doorbell
from nerve.hands import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.envelope import bundles, unbundle
from nerve.protocol.execution import ExecutionState
from nerve.protocol.signature import ToolContext
from nerve.protocol.topics import commands, controls, group, updates
from support.hands_place import Bench
from support.hands_world import CELL, Asker, Told
from support.waiting import until

S = ExecutionState
SETTINGS = Settings(scan_seconds=0.1, sweep_seconds=0.1)


@dataclass(slots=True)
class Wire:
    """A Brain's side of the broker."""

    broker: MemoryBroker
    told: Told
    asker: Asker

    async def command(self, *raws: bytes) -> None:
        await self.broker.publish(commands("local", "hands"), list(bundles(raws)))

    async def control(self, *raws: bytes) -> None:
        await self.broker.publish(controls("local", "hands"), list(bundles(raws)))


@asynccontextmanager
async def wire(catalog: Catalog) -> AsyncGenerator[Wire]:
    broker = MemoryBroker()
    await broker.open()
    told = Told()
    topic = updates("local", CELL)
    consumer = broker.consume(topic, group(topic), credit=lambda: 1000)
    task = asyncio.ensure_future(_listen(consumer, told))
    try:
        yield Wire(broker, told, Asker(catalog))
    finally:
        task.cancel()
        await asyncio.wait([task])
        await consumer.close()
        await broker.close()


async def _listen(consumer: Consumer, told: Told) -> None:
    while True:
        deliveries = await consumer.receive()
        for delivery in deliveries:
            await told.sink(unbundle(delivery.body))
        consumer.ack(deliveries)


@asynccontextmanager
async def replica(
    directory: Path,
    catalog: Catalog,
    broker: MemoryBroker,
    *,
    slots: int = 8,
    settings: Settings = SETTINGS,
) -> AsyncGenerator[WorkerRuntime]:
    place = StateDirectory.open(directory, create=True)
    bell = Doorbell.open(directory)
    try:
        async with WorkerRuntime(
            place, catalog, broker=broker, slots=slots, settings=settings, wakeups=bell
        ) as worker:
            yield worker
    finally:
        bell.close()


@pytest.mark.capability("D3.2", "E9.2")
async def test_behind_a_broker_a_command_runs_and_its_end_comes_back(tmp_path: Path) -> None:
    bench = Bench()
    catalog = bench.catalog()
    async with wire(catalog) as brain, replica(tmp_path, catalog, brain.broker):
        call = brain.asker.call("act")
        await brain.command(brain.asker.seal(call))
        assert (await brain.told.end(call.execution)).state is S.SUCCEEDED
        await brain.control(brain.asker.query(call.execution))
        assert (await brain.told.snapshot(call.execution)).state is S.SUCCEEDED


@pytest.mark.capability("E1.2")
async def test_a_backlog_of_commands_does_not_delay_a_cancel(tmp_path: Path) -> None:
    bench = Bench()
    catalog = bench.catalog()
    async with wire(catalog) as brain, replica(tmp_path, catalog, brain.broker, slots=1):
        calls = [brain.asker.call("hold") for _ in range(300)]
        sending = asyncio.ensure_future(brain.command(*(brain.asker.seal(each) for each in calls)))
        await until(lambda: bench.effects, "the first tool was entered")
        last = calls[-1].execution
        await brain.control(brain.asker.cancel(last))
        assert (await brain.told.end(last)).state is S.CANCELLED
        assert len(bench.effects) == 1
        bench.gate.set()
        await brain.told.ends(each.execution for each in calls)
        await sending
        assert sorted(bench.effects) == sorted(each.execution for each in calls[:-1])


@pytest.mark.capability("E9.2")
async def test_a_look_at_the_credit_does_not_take_its_return_away_from_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers look at it for reasons of their own, for instance whether a buffer must be given back."""
    looked: list[Credit] = []
    consume = MemoryBroker.consume

    def watched(broker: MemoryBroker, topic: str, group: str, *, credit: Credit) -> Consumer:
        if topic == commands("local", "hands"):
            looked.append(credit)
        return consume(broker, topic, group, credit=credit)

    async def look() -> None:
        while True:
            for credit in looked:
                credit()
            await asyncio.sleep(0)

    monkeypatch.setattr(MemoryBroker, "consume", watched)
    catalog = Bench().catalog()
    few = dataclasses.replace(SETTINGS, hands_backlog=3)
    async with wire(catalog) as brain:
        calls = [brain.asker.call("act") for _ in range(30)]
        async with replica(tmp_path, catalog, brain.broker, slots=2, settings=few):
            looking = asyncio.ensure_future(look())
            sending = [
                asyncio.ensure_future(brain.command(brain.asker.seal(each))) for each in calls
            ]
            await brain.told.ends(each.execution for each in calls)
            await asyncio.gather(*sending)
            looking.cancel()


@pytest.mark.capability("E9.2")
@pytest.mark.rule(9)
async def test_two_replicas_of_a_pool_share_the_work_and_run_each_call_once(
    tmp_path: Path,
) -> None:
    benches = [Bench(), Bench()]
    catalogs = [bench.catalog() for bench in benches]
    async with (
        wire(catalogs[0]) as brain,
        replica(tmp_path, catalogs[0], brain.broker, slots=4) as one,
        replica(tmp_path, catalogs[1], brain.broker, slots=4) as two,
    ):
        calls = [brain.asker.call("act") for _ in range(300)]
        await brain.command(*(brain.asker.seal(each) for each in calls))
        ends = await brain.told.ends(each.execution for each in calls)
        assert {each.state for each in ends} == {S.SUCCEEDED}
        assert {each.host for each in ends} <= {one.host.id, two.host.id}
        effects = benches[0].effects + benches[1].effects
        assert sorted(effects) == sorted(each.execution for each in calls)


@pytest.mark.capability("D6.2")
async def test_a_cancel_reaches_the_replica_that_runs_the_tool(tmp_path: Path) -> None:
    entered: list[str] = []
    catalog = Catalog()

    @catalog.tool(cancellable=True)
    async def stop(context: ToolContext) -> str:
        entered.append(context.execution)
        await asyncio.Event().wait()
        return "never"

    async with (
        wire(catalog) as brain,
        replica(tmp_path, catalog, brain.broker, slots=3),
        replica(tmp_path, catalog, brain.broker, slots=3),
    ):
        calls = [brain.asker.call("stop") for _ in range(6)]
        for each in calls:
            await brain.command(brain.asker.seal(each))
        await until(lambda: len(entered) == 6, "all tools were entered")
        await brain.control(*(brain.asker.cancel(each.execution) for each in calls))
        ends = await brain.told.ends(each.execution for each in calls)
        assert {each.state for each in ends} == {S.CANCELLED}


@pytest.mark.rule(18)
async def test_in_a_rolling_deploy_any_replica_admits_and_one_that_has_the_tool_starts(
    tmp_path: Path,
) -> None:
    bench = Bench()
    old, new = Catalog(), bench.catalog()

    @old.tool
    async def other() -> str:
        return "x"

    async with wire(new) as brain, replica(tmp_path, old, brain.broker) as first:
        call = brain.asker.call("act")
        await brain.command(brain.asker.seal(call))
        store = first.executions

        async def waiting() -> str | None:
            reason: str | None = (await store.find(call.execution))["waiting"]
            return reason

        await brain.told.until(
            lambda told: any(u.reason for u in told.updates[call.execution]), "why was told"
        )
        assert await waiting() == "no live host of the route has act@1"
        async with replica(tmp_path, new, brain.broker):
            assert (await brain.told.end(call.execution)).state is S.SUCCEEDED


@pytest.mark.rule(18)
@pytest.mark.capability("D1.3")
async def test_a_tool_that_changed_under_its_version_is_refused_by_name(tmp_path: Path) -> None:
    bench = Bench()
    mine, theirs = bench.catalog(), Catalog()

    @mine.tool
    async def price(item: str) -> str:
        return item

    @theirs.tool(name="price")
    async def other(item: str, currency: str) -> str:
        return item + currency

    async with wire(theirs) as brain, replica(tmp_path, mine, brain.broker):
        call = brain.asker.call("price", item="x", currency="EUR")
        await brain.command(brain.asker.seal(call))
        update = await brain.told.end(call.execution)
        assert (update.state, update.effect, update.code) == (
            S.FAILED,
            "none",
            "binding_mismatch",
        )
