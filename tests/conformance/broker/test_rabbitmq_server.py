"""What is promised of RabbitMQ alone: how its queues are made, who makes them, and what follows when they go."""

import asyncio
import gc
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from nerve.common.broker.port import Consumer, Delivery
from nerve.common.broker.rabbitmq import RabbitBroker
from nerve.common.broker.rabbitmq_address import RabbitSettings, rabbitmq_at
from nerve.protocol.errors import BadInput, BrokerUnavailable
from support.amqp_proxy import AmqpProxy
from support.rabbit import below, channels, manage, permit, virtual_host
from support.servers.rabbitmq import AMQP_CA, AMQP_TLS, MANAGEMENT
from support.waiting import soon, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

TOPIC = "nerve.local.hands.commands"


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with virtual_host() as found:
        yield found


@asynccontextmanager
async def broker(url: str, **changes: Any) -> AsyncGenerator[RabbitBroker]:
    given = RabbitSettings(url=url, create=True, publish_seconds=5, hold_seconds=0.5)
    found = RabbitBroker(replace(given, **changes))
    try:
        yield found
    finally:
        await found.close()


async def published(broker: RabbitBroker, body: bytes) -> None:
    """As the relay does it: again until it is confirmed."""
    while True:
        try:
            return await soon(broker.publish(TOPIC, [body]))
        except BrokerUnavailable:
            continue


def consume(broker: RabbitBroker, credit: int = 1000) -> Consumer:
    return broker.consume(TOPIC, f"{TOPIC}.group", credit=lambda: credit)


async def take(consumer: Consumer, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += await soon(consumer.receive())
    return found


def host(url: str) -> str:
    return urlsplit(url).path[1:]


async def managed(url: str, path: str) -> Any:
    return await asyncio.to_thread(manage, "GET", path.format(host=host(url)))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def seen(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


@pytest.mark.capability("E3.1")
@pytest.mark.report("U24")
async def test_a_topic_is_a_durable_quorum_queue_with_a_limit_and_a_place_for_dead_letters(
    url: str,
) -> None:
    async with broker(url) as found:
        await soon(found.publish(TOPIC, numbered(3)))
        consumer = consume(found)
        await take(consumer, 3)
    queues = {each["name"]: each for each in await managed(url, "queues/{host}")}
    assert {TOPIC, f"{TOPIC}.dead"} == set(queues)
    for each in queues.values():
        assert (True, False, False) == (each["durable"], each["auto_delete"], each["exclusive"])
        assert "quorum" == each["arguments"]["x-queue-type"]
    assert 1000 == queues[TOPIC]["arguments"]["x-delivery-limit"]
    assert f"{TOPIC}.dead" == queues[TOPIC]["arguments"]["x-dead-letter-routing-key"]
    # Every consumer is gone, and the backlog is not.
    async with broker(url) as found:
        assert numbered(3) == sorted(seen(await take(consume(found), 3)))


@pytest.mark.report("U45")
async def test_a_policy_lowers_the_limit_and_what_exceeds_it_is_set_aside(url: str) -> None:
    async with broker(url) as found:
        await soon(found.publish(TOPIC, [b"poison"]))
        definition = {"pattern": f"^{TOPIC}$", "definition": {"delivery-limit": 2}}
        path = f"policies/{host(url)}/limit"
        await asyncio.to_thread(manage, "PUT", path, json.dumps(definition).encode())
        # A queue has a policy a moment after it was set.
        where = f"queues/{{host}}/{TOPIC}"
        while not (await managed(url, where)).get("effective_policy_definition"):
            await asyncio.sleep(0.05)
        consumer = consume(found)
        times = 0
        dead = found.consume(f"{TOPIC}.dead", "group", credit=lambda: 1)
        waiting = asyncio.ensure_future(dead.receive())
        while not waiting.done():
            receiving = asyncio.ensure_future(consumer.receive())
            await asyncio.wait([receiving, waiting], return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                times += 1
                consumer.nack(receiving.result())
            else:
                receiving.cancel()
        assert [b"poison"] == seen(waiting.result())
        assert 3 == times


async def test_hosts_only_look_unless_they_are_told_to_create(url: str) -> None:
    async with broker(url, create=False) as found:
        with pytest.raises(BrokerUnavailable, match="nerve provision"):
            await soon(found.publish(TOPIC, [b"a"]))
        consumer = consume(found)
        receiving = asyncio.ensure_future(consumer.receive())
        await until(lambda: "nerve provision" in str(found.troubles()), "the consumer says so")
        assert [] == await managed(url, "queues/{host}")
        async with broker(url) as operator:
            assert [] == await soon(operator.lacking([TOPIC], reads=[TOPIC], create=True))
        await soon(found.publish(TOPIC, [b"a"]))
        assert [b"a"] == seen(await soon(receiving))


@pytest.mark.capability("E10.1")
async def test_what_is_missing_is_named_with_the_command_that_makes_it(url: str) -> None:
    async with broker(url) as found:
        lacks = await soon(found.lacking([TOPIC], reads=[TOPIC], create=False))
        assert [f"the queue {TOPIC}.dead", f"the queue {TOPIC}"] == [lack.what for lack in lacks]
        assert "rabbitmqadmin" in lacks[0].step and "x-delivery-limit" in lacks[1].step
        assert [] == await managed(url, "queues/{host}")
        assert [] == await soon(found.lacking([TOPIC], reads=[TOPIC], create=True))
        assert [] == await soon(found.lacking([TOPIC], reads=[TOPIC], create=False))


@pytest.mark.capability("E10.1")
async def test_a_right_that_is_missing_is_named_with_whom_to_ask_for_what(url: str) -> None:
    user = f"u-{host(url)}"
    body = b'{"password": "their-secret", "tags": ""}'
    await asyncio.to_thread(manage, "PUT", f"users/{user}", body)
    await asyncio.to_thread(permit, host(url), user, "^$")
    parts = urlsplit(url)
    theirs = urlunsplit(("amqp", f"{user}:their-secret@{parts.hostname}:{parts.port}", *parts[2:]))
    try:
        async with broker(theirs) as found, broker(url) as operator:
            unmade = await soon(found.lacking([TOPIC], reads=[TOPIC], create=True))
            assert {
                f"the queue {TOPIC}",
                f"the queue {TOPIC}.dead",
                f"the right of {user} to write to the default exchange",
            } == {each.what for each in unmade}
            assert all(f"set_permissions -p {host(url)} {user}" in lack.step for lack in unmade)
            assert [] == await soon(operator.lacking([TOPIC], reads=[TOPIC], create=True))
            [read, write] = await soon(found.lacking([TOPIC], reads=[TOPIC], create=False))
            assert f"the right of {user} to read {TOPIC}" == read.what
            assert f"the right of {user} to write to the default exchange" == write.what
    finally:
        await asyncio.to_thread(manage, "DELETE", f"users/{user}")


async def test_looking_for_rights_takes_no_message_and_leaves_none(url: str) -> None:
    async with broker(url) as found:
        await soon(found.publish(TOPIC, numbered(5)))
        assert [] == await soon(found.lacking([TOPIC], reads=[TOPIC], create=False))
        assert {TOPIC: 5} == await soon(found.waiting([TOPIC]))
        assert numbered(5) == seen(await take(consume(found), 5))


@pytest.mark.capability("E3.1")
async def test_there_are_two_connections_and_a_channel_for_each_consumer(url: str) -> None:
    async with broker(url) as found:
        await soon(found.publish(TOPIC, [b"a"]))
        await take(consume(found), 1)
        other = found.consume("nerve.local.hands.controls", "group", credit=lambda: 1)
        receiving = asyncio.ensure_future(other.receive())
        ours = ["nerve consumer"] * 2 + ["nerve publisher"]
        # The plugin counts every few seconds.
        while ours != await asyncio.to_thread(channels, host(url)):
            await asyncio.sleep(0.2)
        receiving.cancel()


@pytest.mark.capability("E3.1")
async def test_a_deleted_queue_is_made_again_and_whoever_consumed_it_goes_on(url: str) -> None:
    """A server may count the old consumer still, and deliver nothing to it: then time tells."""
    async with broker(url, watch_seconds=1.0) as found:
        consumer = consume(found)
        receiving = asyncio.ensure_future(consumer.receive())
        await until(lambda: not found.troubles(), "it consumes")
        await asyncio.to_thread(manage, "DELETE", f"queues/{host(url)}/{TOPIC}")
        body = b"after"
        await published(found, body)
        assert [body] == seen(await soon(receiving))


@pytest.mark.report("U39")
async def test_a_channel_that_was_closed_for_an_error_is_not_used_again(url: str) -> None:
    async with broker(url, create=False) as found, broker(url) as operator:
        await soon(operator.lacking([TOPIC], reads=[TOPIC], create=True))
        await soon(found.publish(TOPIC, [b"a"]))
        for _ in range(3):
            with pytest.raises(BrokerUnavailable):
                await soon(found.publish("nerve.local.nobody.commands", [b"b"]))
            await soon(found.publish(TOPIC, [b"c"]))
        assert {TOPIC: 4} == await soon(found.waiting([TOPIC]))


async def test_of_messages_to_nobody_none_is_ever_confirmed(url: str) -> None:
    async with broker(url, create=False) as found:
        for bodies in (numbered(1), numbered(40)):
            with pytest.raises(BrokerUnavailable, match="PublishError"):
                await soon(found.publish(TOPIC, bodies))


@pytest.mark.report("U06")
async def test_an_acknowledgement_over_a_lost_channel_is_swallowed(url: str) -> None:
    async with broker(url) as found:
        await soon(found.publish(TOPIC, [b"a"]))
        consumer = consume(found)
        stale = await take(consumer, 1)
        await asyncio.to_thread(manage, "DELETE", f"queues/{host(url)}/{TOPIC}")
        await soon(found.lacking([TOPIC], reads=[TOPIC], create=True))
        consumer.ack(stale)
        consumer.nack(stale)
        await soon(found.publish(TOPIC, [b"b"]))
        assert [b"b"] == seen(await take(consumer, 1))
        consumer.ack(stale)
        await soon(found.publish(TOPIC, [b"c"]))
        assert [b"c"] == seen(await take(consumer, 1))


@pytest.mark.report("U07")
async def test_a_close_leaves_nothing_unacknowledged_of_what_was_acknowledged(url: str) -> None:
    async with broker(url) as found:
        await soon(found.publish(TOPIC, numbered(50)))
        consumer = consume(found)
        taken = 0
        while taken < 50:
            deliveries = await soon(consumer.receive())
            taken += len(deliveries)
            consumer.ack(deliveries)
        await soon(consumer.close())
    async with broker(url) as found:
        assert {TOPIC: 0} == await soon(found.waiting([TOPIC]))


@pytest.mark.report("U31")
async def test_closing_while_reconnecting_says_nothing(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = urlunsplit(("amqp", "u:p@127.0.0.1:1", "/", "", ""))
    for number in range(30):
        async with broker(url if number % 3 else nowhere) as found:
            receiving = asyncio.ensure_future(consume(found).receive())
            publishing = asyncio.ensure_future(found.publish(TOPIC, [b"a"]))
            await asyncio.sleep(0.002 * number)
        with pytest.raises(BrokerUnavailable):
            await soon(receiving)
            raise BrokerUnavailable("it had received")
        await asyncio.wait([publishing], timeout=20)
        assert isinstance(publishing.exception(), BrokerUnavailable | None)
    ours = [each for each in caplog.records if each.name.startswith(("nerve", "asyncio"))]
    assert [] == [each for each in ours if each.levelname == "ERROR"]


@pytest.mark.report("U33")
async def test_reconnects_leave_nothing_behind(url: str, caplog: pytest.LogCaptureFixture) -> None:
    # What pytest captures would keep every error, and with it every connection.
    for name in ("nerve", "aiormq", "aio_pika"):
        caplog.set_level(logging.CRITICAL, logger=name)
    parts = urlsplit(url)
    with AmqpProxy.before(parts.hostname or "", parts.port or 0) as proxy:
        place = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
        async with broker(urlunsplit(("amqp", place, parts.path, "", ""))) as found:
            consumer = consume(found)
            for number in range(20):
                body = b"%d" % number
                await published(found, body)
                seen_now: list[bytes] = []
                while body not in seen_now:
                    deliveries = await soon(consumer.receive())
                    consumer.ack(deliveries)
                    seen_now += seen(deliveries)
                proxy.cut()
            gc.collect()
            alive = Counter(
                type(each).__name__
                for each in gc.get_objects()
                if str(type(each).__module__).partition(".")[0] in ("aio_pika", "aiormq")
            )
    # Of each link a connection and a channel, in both libraries, and those that are just being made.
    assert alive["Connection"] <= 8 and alive["Channel"] <= 8, alive


@pytest.mark.capability("E3.1")
async def test_tls_with_an_authority_of_ones_own(url: str) -> None:
    tls = below(AMQP_TLS.address(), host(url))
    trusting = rabbitmq_at(f"{tls}?create=true&ca_file={AMQP_CA.address()}", publish_seconds=5)
    trusted = RabbitBroker(trusting)
    try:
        await soon(trusted.publish(TOPIC, [b"a"]))
        assert [b"a"] == seen(await take(consume(trusted), 1))
    finally:
        await trusted.close()
    async with broker(tls) as stranger:
        with pytest.raises(BrokerUnavailable, match="ca_file"):
            await soon(stranger.publish(TOPIC, [b"a"]))
    missing = RabbitBroker(f"{tls}?ca_file=/nowhere/ca.pem")
    with pytest.raises(BadInput, match="/nowhere/ca.pem"):
        await soon(missing.publish(TOPIC, [b"a"]))
    await missing.close()


async def test_limits_are_told_where_they_can_be_known(url: str) -> None:
    port = urlsplit(MANAGEMENT.address()).port
    for management, limit in ((f"&management={port}", 1000), ("", None)):
        found = RabbitBroker(f"{url}?create=true{management}")
        try:
            await soon(found.lacking([TOPIC], reads=[TOPIC], create=True))
            limits = {each.name: each for each in await soon(found.limits([TOPIC]))}
            assert limit == limits[f"{TOPIC}: delivery limit"].value
            assert str(limits["version"].value).startswith("RabbitMQ ")
            assert "10" == limits["heartbeat"].value
            assert await soon(found.retention_ms([TOPIC])) is None
        finally:
            await found.close()
