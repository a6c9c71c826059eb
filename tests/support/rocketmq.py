"""A RocketMQ server for tests, and topics of its own for each test."""

import asyncio
import atexit
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from nerve.common.broker.rocketmq import RocketBroker
from nerve.common.broker.rocketmq_link import RocketSettings
from nerve.common.broker.rocketmq_names import physical
from nerve.protocol import topics as names
from support.rocketmq_proxy import client_or_skip
from support.servers import rocketmq_admin as admin
from support.servers.native import NativeServer
from support.services import Service, Unavailable, required

VARIABLE = "NERVE_TEST_ROCKETMQ_ENDPOINT"

server = NativeServer("rocketmq", programs=["java"], asked=True)
atexit.register(server.drop)

ROCKETMQ = Service(name="rocketmq", variable=VARIABLE, native=[lambda: server.address(VARIABLE)])
NAMESRV = Service(
    name="rocketmq",
    variable="NERVE_TEST_ROCKETMQ_NAMESRV",
    native=[lambda: server.address("NERVE_TEST_ROCKETMQ_NAMESRV")],
)
CA_FILE = Service(
    name="rocketmq",
    variable="NERVE_TEST_ROCKETMQ_CA_FILE",
    native=[lambda: server.address("NERVE_TEST_ROCKETMQ_CA_FILE")],
)


@dataclass(frozen=True, slots=True)
class Space:
    """A prefix on one server, below which topics can be made."""

    namesrv: str
    settings: RocketSettings

    async def make(self, topic: str, *, groups: Sequence[str] = (), queues: int = 1) -> None:
        """The topic with its own group, or with others."""
        await asyncio.to_thread(self.make_now, topic, groups=groups, queues=queues)

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(admin.delete_topic, self.namesrv, self._name(topic))

    async def delete_group(self, group: str) -> None:
        await asyncio.to_thread(admin.delete_group, self.namesrv, self._name(group))

    def make_now(self, topic: str, *, groups: Sequence[str] = (), queues: int = 1) -> None:
        admin.make_topic(self.namesrv, self._name(topic), queues=queues)
        for group in groups or [names.group(topic)]:
            admin.make_group(self.namesrv, self._name(group), self._name(topic))

    def _name(self, name: str) -> str:
        return physical(f"{self.settings.prefix}{name}")


def a_space(settings: RocketSettings | None = None) -> Space:
    """Skips where there is no server or no client; starting one takes some seconds."""
    client_or_skip()
    endpoint = ROCKETMQ.address()
    settings = settings or RocketSettings(
        endpoint=endpoint, publish_seconds=5, invisible_seconds=10, hold_seconds=0.5
    )
    prefix = f"t{secrets.token_hex(4)}."
    return Space(NAMESRV.address(), replace(settings, endpoint=endpoint, prefix=prefix))


async def space(settings: RocketSettings | None = None) -> Space:
    return await asyncio.to_thread(a_space, settings)


def started(server: NativeServer) -> Space:
    """Skips where none can be started."""
    client_or_skip()
    try:
        server.start()
    except Unavailable as error:
        (pytest.fail if required("rocketmq") else pytest.skip)(str(error))
    return at_server(server)


def at_server(server: NativeServer) -> Space:
    settings = RocketSettings(
        endpoint=server.address("NERVE_TEST_ROCKETMQ_ENDPOINT"),
        prefix=f"t{secrets.token_hex(4)}.",
        publish_seconds=5,
        invisible_seconds=10,
    )
    return Space(server.address("NERVE_TEST_ROCKETMQ_NAMESRV"), settings)


@asynccontextmanager
async def two_ends(space: Space) -> AsyncGenerator[tuple[RocketBroker, RocketBroker]]:
    """Two connections, as two processes would have them."""
    brokers = RocketBroker(space.settings), RocketBroker(space.settings)
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.close()
