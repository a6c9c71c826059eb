"""A real RocketMQ under this adapter: killed under load, messages left alone, TLS, several queues."""

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nerve.common.broker.rocketmq import RocketBroker
from nerve.common.clock import SystemClock
from nerve.protocol import topics
from nerve.protocol.errors import BrokerUnavailable
from support import rocketmq
from support.rocketmq import at_server, started, two_ends
from support.servers.native import NativeServer
from support.waiting import running, soon, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(240)]

TOPIC = "nerve.test.hands.commands"
PACE = SystemClock()
GROUP = topics.group(TOPIC)


@pytest.fixture(scope="module")
def own() -> Iterator[NativeServer]:
    """A server that may be killed; the one that the environment names may not."""
    found = NativeServer("rocketmq", programs=["java"], asked=True)
    try:
        started(found)
        yield found
    finally:
        found.drop()


async def drain(broker: RocketBroker, into: list[bytes]) -> None:
    consumer = broker.consume(TOPIC, GROUP, credit=lambda: 1000)
    while True:
        deliveries = await consumer.receive()
        into.extend(delivery.body for delivery in deliveries)
        consumer.ack(deliveries)


async def publish_through(
    broker: RocketBroker, name: int, confirmed: list[bytes], failures: list[str] | None = None
) -> None:
    """As an outbox does: what was not confirmed is published again."""
    number = 0
    while True:
        body = b"%d.%d" % (name, number)
        try:
            await broker.publish(TOPIC, [body])
        except BrokerUnavailable as error:
            if failures is not None:
                failures.append(str(error))
            await PACE.sleep(0.1)
            continue
        confirmed.append(body)
        number += 1
        await PACE.sleep(0.005)


@pytest.mark.slow
@pytest.mark.chaos
async def test_a_server_killed_under_load_loses_nothing_and_is_back_in_seconds(
    own: NativeServer,
) -> None:
    space = await asyncio.to_thread(at_server, own)
    await space.make(TOPIC)
    confirmed: list[bytes] = []
    received: list[bytes] = []
    async with two_ends(space) as (sender, receiver):
        async with running(drain(receiver, received)):
            work = [publish_through(sender, name, confirmed) for name in range(8)]
            async with running(asyncio.gather(*work)):
                await until(lambda: len(received) > 200, "messages flow")
                await asyncio.to_thread(own.kill)
                stopped_at = len(received)
                await asyncio.to_thread(own.start)
                back_at = asyncio.get_running_loop().time()
                await until(lambda: len(received) > stopped_at + 100, "they flow again", 30)
                took = asyncio.get_running_loop().time() - back_at
            await until(lambda: set(confirmed) <= set(received), "nothing is lost", 60)
    assert took < 15, "recovery in seconds, not in the ten minutes of the official client"


@pytest.mark.slow
@pytest.mark.chaos
async def test_a_server_frozen_for_longer_than_every_deadline_loses_nothing(
    own: NativeServer,
) -> None:
    space = await asyncio.to_thread(at_server, own)
    settings = replace(space.settings, publish_seconds=1, call_seconds=1, heartbeat_seconds=1)
    space = replace(space, settings=settings)
    await space.make(TOPIC)
    confirmed: list[bytes] = []
    received: list[bytes] = []
    failures: list[str] = []
    pid = int((own.directory / "rocketmq.pid").read_text().split()[0])
    async with two_ends(space) as (sender, receiver):
        async with running(drain(receiver, received)):
            async with running(publish_through(sender, 0, confirmed, failures)):
                await until(lambda: len(received) > 20, "messages flow")
                os.kill(pid, signal.SIGSTOP)
                try:
                    await until(lambda: len(failures) >= 3, "it is away")
                finally:
                    os.kill(pid, signal.SIGCONT)
                stopped_at = len(confirmed)
                await until(lambda: len(confirmed) > stopped_at + 20, "they flow again", 30)
            await until(lambda: set(confirmed) <= set(received), "nothing is lost", 60)


@pytest.mark.slow
@pytest.mark.report("U122")
async def test_a_message_left_alone_comes_back_when_its_time_is_over() -> None:
    space = await rocketmq.space()
    await space.make(TOPIC)
    async with two_ends(space) as (sender, receiver):
        await soon(sender.publish(TOPIC, [b"a", b"b"]))
        consumer = receiver.consume(TOPIC, GROUP, credit=lambda: 10)
        first = [each.body for each in await soon(consumer.receive())]
        again: list[bytes] = []
        while len(again) < len(first):
            deliveries = await soon(consumer.receive(), 40)
            consumer.ack(deliveries)
            again += [each.body for each in deliveries]
        assert sorted(first) == sorted(again)[: len(first)]


async def test_a_private_authority_is_trusted_where_it_is_named_and_nowhere_else() -> None:
    space = await rocketmq.space()
    ca_file = await asyncio.to_thread(rocketmq.CA_FILE.address)
    await space.make(TOPIC)
    secure = replace(space.settings, tls=True, ca_file=ca_file)
    async with two_ends(replace(space, settings=secure)) as (sender, receiver):
        await soon(sender.publish(TOPIC, [b"a"]))
        consumer = receiver.consume(TOPIC, GROUP, credit=lambda: 10)
        [delivery] = await soon(consumer.receive())
        consumer.ack([delivery])
        assert delivery.body == b"a"
    stranger = replace(space.settings, tls=True, publish_seconds=2)
    async with two_ends(replace(space, settings=stranger)) as (sender, _):
        with pytest.raises(BrokerUnavailable):
            await soon(sender.publish(TOPIC, [b"b"]))


@pytest.mark.slow
async def test_a_server_that_asks_for_keys_takes_the_right_ones_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NERVE_ROCKETMQ_KEYS", "nerve:nerve-secret")
    guarded = NativeServer("rocketmq", programs=["java"], asked=True)
    try:
        space = await asyncio.to_thread(started, guarded)
        await space.make(TOPIC)
        keys = replace(space.settings, access_key="nerve", secret_key="nerve-secret")
        received: list[bytes] = []
        async with two_ends(replace(space, settings=keys)) as (sender, receiver):
            async with running(drain(receiver, received)):
                await soon(sender.publish(TOPIC, [b"a"]))
                await until(lambda: received == [b"a"], "it arrived")
        for wrong in (space.settings, replace(keys, secret_key="another")):
            async with two_ends(replace(space, settings=wrong)) as (sender, _):
                with pytest.raises(BrokerUnavailable, match="UNAUTHORIZED") as caught:
                    await soon(sender.publish(TOPIC, [b"b"]))
                assert "NERVE_ROCKETMQ_SECRET_KEY" in caught.value.next_step
    finally:
        await asyncio.to_thread(guarded.drop)


async def test_a_topic_of_many_queues_loses_and_doubles_nothing() -> None:
    space = await rocketmq.space()
    await space.make(TOPIC, queues=8)
    sent = [b"%d" % number for number in range(300)]
    received: list[bytes] = []
    async with two_ends(space) as (sender, receiver), running(drain(receiver, received)):
        for start in range(0, 300, 10):
            await soon(sender.publish(TOPIC, sent[start : start + 10]))
        await until(lambda: len(received) >= 300, "everything arrived")
    assert sorted(received) == sorted(sent)


@pytest.mark.slow
async def test_a_topic_that_is_made_later_is_found() -> None:
    space = await rocketmq.space()
    received: list[bytes] = []
    async with two_ends(space) as (sender, receiver), running(drain(receiver, received)):
        with pytest.raises(BrokerUnavailable, match="TOPIC_NOT_FOUND"):
            await soon(sender.publish(TOPIC, [b"early"]))
        await space.make(TOPIC)
        async with running(publish_through(sender, 0, [])):
            await until(lambda: received, "it was found", 45)  # the proxy remembers for 20 s


@pytest.mark.slow
async def test_a_topic_deleted_while_it_is_consumed_is_used_again_once_it_is_made_again() -> None:
    space = await rocketmq.space()
    await space.make(TOPIC)
    received: list[bytes] = []
    confirmed: list[bytes] = []
    failures: list[str] = []
    async with two_ends(space) as (sender, receiver), running(drain(receiver, received)):
        async with running(publish_through(sender, 0, confirmed, failures)):
            await until(lambda: len(received) > 20, "messages flow")
            await space.delete(TOPIC)
            await until(lambda: failures, "it is gone")
            await space.make(TOPIC)
            before, stopped_at = len(received), len(confirmed)
            await until(lambda: len(confirmed) > stopped_at, "it is published to again", 45)
            await until(lambda: len(received) > before + 20, "messages flow again", 45)


async def test_provision_finds_missing_topics_and_missing_groups() -> None:
    space = await rocketmq.space()
    await space.make(TOPIC)
    async with two_ends(space) as (broker, _):
        assert await soon(broker.lacking([TOPIC], reads=[TOPIC], create=True)) == []
        await space.delete_group(GROUP)
        lacks = await soon(broker.lacking([TOPIC, "t.none"], reads=[], create=False))
        assert [each.topic for each in lacks] == [TOPIC, "t.none"]
        assert "mqadmin updateSubGroup" in lacks[0].step
