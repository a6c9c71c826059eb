"""The broker inside one process: a confirm waits for the receiver, with a deadline."""

import asyncio

import pytest

from nerve.common.broker import MemoryBroker
from nerve.common.clock import VirtualClock, settle
from nerve.protocol.errors import BrokerUnavailable
from support.waiting import running, soon


@pytest.mark.law(1)
async def test_a_publish_returns_only_after_the_receiver_acknowledged() -> None:
    broker = MemoryBroker()
    consumer = broker.consume("t", "g", credit=lambda: 10)
    async with running(broker.publish("t", [b"a"])) as publishing:
        received = await soon(consumer.receive())
        await settle()
        assert not publishing.done()
        consumer.ack(received)
        await soon(publishing)


async def test_a_receiver_that_never_acknowledges_ends_the_publish_at_its_deadline() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock, publish_seconds=10)
    consumer = broker.consume("t", "g", credit=lambda: 10)
    publishing = asyncio.create_task(broker.publish("t", [b"a"]))
    await soon(consumer.receive())
    await clock.advance(10)
    with pytest.raises(BrokerUnavailable, match="did not acknowledge"):
        await publishing


async def test_a_publish_that_gave_up_is_not_delivered_beside_its_repetition() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock, publish_seconds=10)
    consumer = broker.consume("t", "g", credit=lambda: 10)
    first = asyncio.create_task(broker.publish("t", [b"a"]))
    await clock.until_waiting()
    await clock.advance(10)
    with pytest.raises(BrokerUnavailable):
        await first
    async with running(broker.publish("t", [b"a"])) as again:
        received = await soon(consumer.receive())
        consumer.ack(received)
        await soon(again)
    assert 1 == len(received)


async def test_waiting_for_credit_is_back_pressure_without_a_deadline() -> None:
    clock = VirtualClock()
    broker = MemoryBroker(clock=clock, publish_seconds=10)
    credit = 0
    consumer = broker.consume("t", "g", credit=lambda: credit)
    publishing = asyncio.create_task(broker.publish("t", [b"a"]))
    await clock.until_waiting()
    await clock.advance(100)
    assert not publishing.done()
    credit = 1
    consumer.poke()
    consumer.ack(await soon(consumer.receive()))
    await soon(publishing)


async def test_a_consumer_that_leaves_ends_the_publishes_that_wait_for_it() -> None:
    broker = MemoryBroker()
    consumer = broker.consume("t", "g", credit=lambda: 10)
    publishing = asyncio.create_task(broker.publish("t", [b"a", b"b"]))
    await soon(consumer.receive())
    await consumer.close()
    with pytest.raises(BrokerUnavailable):
        await soon(publishing)
