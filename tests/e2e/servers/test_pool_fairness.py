"""After the links to the broker were lost, new work goes to whoever is free and not behind a busy replica."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from nerve.common.broker.rabbitmq import RabbitBroker
from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.wakeups import Doorbell
from nerve.hands import WorkerRuntime
from nerve.protocol.envelope import bundles, unbundle
from nerve.protocol.execution import ExecutionState
from nerve.protocol.topics import commands, group, updates
from support.hands_place import Bench
from support.hands_world import CELL, Asker, Told
from support.rabbit import virtual_host
from support.tcp_proxy import TcpProxy
from support.waiting import running, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(120)]

SELDOM = Settings(scan_seconds=60.0, sweep_seconds=60.0)
"""What comes in time comes by the broker and by hints."""
SHORT = 40


@asynccontextmanager
async def replica(place: Path, bench: Bench, url: str) -> AsyncGenerator[WorkerRuntime]:
    async with AsyncExitStack() as stack:
        directory = StateDirectory.open(place, create=True)
        bell = Doorbell.open(place)
        stack.callback(bell.close)
        settings = RabbitSettings(url=url, create=True, watch_seconds=1, hold_seconds=0.5)
        broker = RabbitBroker(settings)
        stack.push_async_callback(broker.close)
        yield await stack.enter_async_context(
            WorkerRuntime(
                directory, bench.catalog(), broker=broker, slots=1, settings=SELDOM, wakeups=bell
            )
        )


def through(url: str, proxy: TcpProxy) -> str:
    parts = urlsplit(url)
    user = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
    return urlunsplit((parts.scheme, user, parts.path, "", ""))


@pytest.mark.report("U44")
@pytest.mark.capability("E9.2")
async def test_short_tools_end_on_an_idle_replica_while_a_long_one_keeps_the_other_busy(
    tmp_path: Path,
) -> None:
    benches = [Bench(), Bench()]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(virtual_host())
        parts = urlsplit(url)
        proxy = stack.enter_context(TcpProxy.before(parts.hostname or "", parts.port or 5672))
        brain = RabbitBroker(RabbitSettings(url=url, create=True))
        stack.push_async_callback(brain.close)
        told, asker = Told(), Asker(benches[0].catalog())
        consumer = brain.consume(
            updates("local", CELL), group(updates("local", CELL)), credit=lambda: 1000
        )

        async def listen() -> None:
            while True:
                deliveries = await consumer.receive()
                for each in deliveries:
                    await told.sink(unbundle(each.body))
                consumer.ack(deliveries)

        await stack.enter_async_context(running(listen()))
        for bench in benches:
            await stack.enter_async_context(replica(tmp_path, bench, through(url, proxy)))
        topic = commands("local", "hands")
        long = asker.call("hold")
        await brain.publish(topic, list(bundles([asker.seal(long)])))
        await until(lambda: benches[0].effects or benches[1].effects, "the long tool runs")
        busy, idle = benches if benches[0].effects else benches[::-1]
        for round in range(3):
            proxy.cut()
            calls = [asker.call("act") for _ in range(SHORT)]
            for call in calls:
                await brain.publish(topic, list(bundles([asker.seal(call)])))
            ends = await told.ends(call.execution for call in calls)
            assert {each.state for each in ends} == {ExecutionState.SUCCEEDED}, round
        assert busy.effects == [long.execution]
        assert len(idle.effects) == len({*idle.effects}) == 3 * SHORT
        busy.gate.set()
        assert (await told.end(long.execution)).state is ExecutionState.SUCCEEDED
