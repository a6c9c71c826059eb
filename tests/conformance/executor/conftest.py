"""Every executor behind the port; a new one adds a line to `EXECUTORS`."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from nerve.brain.tools.remote import RemoteExecutor
from nerve.common.broker import Broker, MemoryBroker, SqliteBroker
from nerve.common.wakeups import Doorbell
from nerve.hands import WorkerRuntime
from nerve.protocol.envelope import unbundle
from nerve.protocol.topics import group, updates
from support.executor_world import Effects, World, catalog
from support.hands_world import CELL, Asker, Told
from support.hub import hub
from support.waiting import running

Opener = Callable[[Path], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def local(directory: Path) -> AsyncGenerator[World]:
    effects = Effects()
    tools = catalog(effects)
    told = Told()
    async with WorkerRuntime(directory / "state", tools, slots=4) as worker:
        executor = worker.local_executor()
        await executor.open(CELL, told.sink)
        yield World(executor, Asker(tools), told, effects)
        effects.gate.set()
        await executor.close()


@asynccontextmanager
async def behind(directory: Path, broker: Broker) -> AsyncGenerator[World]:
    """A worker behind a broker, and the Brain's end of it; updates come by the cell's own topic."""
    effects = Effects()
    tools = catalog(effects)
    told = Told()
    await broker.open()
    topic = updates("local", CELL)
    consumer = broker.consume(topic, group(topic), credit=lambda: 1000)

    async def listen() -> None:
        while True:
            deliveries = await consumer.receive()
            for delivery in deliveries:
                await told.sink(unbundle(delivery.body))
            consumer.ack(deliveries)

    async with WorkerRuntime(directory / "state", tools, slots=4, broker=broker):
        executor = RemoteExecutor(broker, deployment="local", route="hands")
        await executor.open(CELL, told.sink)
        async with running(listen()):
            yield World(executor, Asker(tools), told, effects)
            effects.gate.set()
        await consumer.close()
    await broker.close()


@asynccontextmanager
async def memory(directory: Path) -> AsyncGenerator[World]:
    async with behind(directory, MemoryBroker()) as world:
        yield world


@asynccontextmanager
async def sqlite(directory: Path) -> AsyncGenerator[World]:
    bell = Doorbell.open(directory)
    try:
        async with behind(directory, SqliteBroker(directory, bell)) as world:
            yield world
    finally:
        bell.close()


@asynccontextmanager
async def http(directory: Path) -> AsyncGenerator[World]:
    async with hub(directory) as found, behind(directory, found.client()) as world:
        yield world


EXECUTORS: dict[str, Opener] = {
    "local": local,
    "memory": memory,
    "sqlite": sqlite,
    "http": http,
}


@pytest.fixture(params=sorted(EXECUTORS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with EXECUTORS[request.param](tmp_path) as opened:
        yield opened
