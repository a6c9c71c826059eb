"""Every broker behind the port; a new one adds a line to `BROKERS`."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.broker import Broker, MemoryBroker, SqliteBroker
from nerve.common.broker.rabbitmq import RabbitBroker
from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.wakeups import Doorbell
from support.hub import hub
from support.queues import Opened
from support.rabbit import virtual_host
from support.rocketmq import space, two_ends


@dataclass(frozen=True, slots=True)
class Link:
    """Two ends of one broker, as two processes would have them."""

    sender: Broker
    receiver: Broker


Opener = Callable[[Path], AbstractAsyncContextManager[Link]]


@asynccontextmanager
async def memory(directory: Path) -> AsyncGenerator[Link]:
    broker = MemoryBroker(publish_seconds=5)
    await broker.open()
    try:
        yield Link(broker, broker)
    finally:
        await broker.close()


@asynccontextmanager
async def sqlite(directory: Path, *, quick_flush_seconds: float = 1.0) -> AsyncGenerator[Link]:
    bells = [Doorbell.open(directory), Doorbell.open(directory)]
    sender, receiver = (
        SqliteBroker(directory, bell, publish_seconds=5, quick_flush_seconds=quick_flush_seconds)
        for bell in bells
    )
    await sender.open()
    await receiver.open()
    try:
        yield Link(sender, receiver)
    finally:
        await sender.close()
        await receiver.close()
        for bell in bells:
            bell.close()


def sqlite_on_a_slow_disk(directory: Path) -> AbstractAsyncContextManager[Link]:
    """Commits wait in the helper thread, as they do where a flush takes long."""
    return sqlite(directory, quick_flush_seconds=0.0)


@asynccontextmanager
async def rabbitmq(directory: Path) -> AsyncGenerator[Link]:
    async with virtual_host() as url:
        settings = RabbitSettings(
            url=url, create=True, publish_seconds=5, watch_seconds=1, hold_seconds=0.5
        )
        sender, receiver = RabbitBroker(settings), RabbitBroker(settings)
        await sender.open()
        await receiver.open()
        try:
            yield Link(sender, receiver)
        finally:
            await sender.close()
            await receiver.close()


@asynccontextmanager
async def rocketmq(directory: Path) -> AsyncGenerator[Link]:
    found = await space()
    for topic in ("nerve.test.hands.commands", "t.a", "t.b"):
        await found.make(topic, groups=[f"{topic}.group", "group"])
    async with two_ends(found) as (sender, receiver):
        yield Link(sender, receiver)


@asynccontextmanager
async def http(directory: Path) -> AsyncGenerator[Link]:
    async with hub(directory) as found:
        sender, receiver = found.client(), found.client()
        try:
            yield Link(sender, receiver)
        finally:
            await sender.close()
            await receiver.close()


BROKERS: dict[str, Opener] = {
    "memory": memory,
    "sqlite": sqlite,
    "http": http,
    "sqlite-slow-disk": sqlite_on_a_slow_disk,
    "rabbitmq": rabbitmq,
    "rocketmq": rocketmq,
}


# The first test of a run may have to start the server.
SERVERS = {
    name: [pytest.mark.external, pytest.mark.timeout(180)] for name in ("rabbitmq", "rocketmq")
}


@pytest.fixture(
    params=[pytest.param(name, marks=SERVERS.get(name, ())) for name in BROKERS], ids=str
)
async def link(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Link]:
    async with BROKERS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    brokers = Opened(tmp_path)
    yield brokers
    faults.disarm()
    await brokers.close()


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    faults.disarm()
    yield
    faults.disarm()
