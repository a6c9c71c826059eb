"""The misbehaving broker misbehaves as asked, and the same way again for the same seed."""

import asyncio
from collections.abc import Sequence

import pytest

from nerve.common.broker import Consumer, Disorder, MemoryBroker, UnrulyBroker
from nerve.common.clock import VirtualClock, settle
from nerve.protocol.errors import BrokerUnavailable

SENT = [b"%d" % number for number in range(200)]


async def seen(disorder: Disorder, sent: Sequence[bytes] = SENT) -> list[bytes]:
    """What a consumer receives of `sent`, published as bundles of four."""
    clock = VirtualClock()
    broker = UnrulyBroker(MemoryBroker(clock=clock), disorder, clock=clock)
    await broker.open()
    received: list[bytes] = []
    consumer = broker.consume("t", "g", credit=lambda: 1000)
    reading = asyncio.create_task(read(consumer, received))
    for start in range(0, len(sent), 4):
        try:
            await broker.publish("t", [b"\n".join(sent[start : start + 4])])
        except BrokerUnavailable:
            received.append(b"unconfirmed")
    await clock.advance(5)
    await settle()
    reading.cancel()
    await broker.close()
    return received


async def read(consumer: Consumer, received: list[bytes]) -> None:
    while True:
        deliveries = await consumer.receive()
        received.extend(delivery.body for delivery in deliveries)
        consumer.ack(deliveries)


async def test_without_disorder_everything_arrives_in_order() -> None:
    assert SENT == await seen(Disorder(seed=1))


@pytest.mark.law(12)
async def test_the_same_seed_misbehaves_in_the_same_way() -> None:
    disorder = Disorder(seed=7, lose=0.1, double=0.2, delay=0.3, shuffle=0.5)
    assert await seen(disorder) == await seen(disorder)
    other = Disorder(seed=8, lose=0.1, double=0.2, delay=0.3, shuffle=0.5)
    assert await seen(disorder) != await seen(other)


async def test_losing_loses_and_invents_nothing() -> None:
    received = await seen(Disorder(seed=1, lose=0.3))
    assert 100 < len(received) < 180
    assert received == [body for body in SENT if body in received]


async def test_doubling_doubles_and_loses_nothing() -> None:
    received = await seen(Disorder(seed=1, double=0.3))
    assert set(SENT) == set(received)
    assert 230 < len(received) < 300


@pytest.mark.parametrize("disorder", [Disorder(seed=1, delay=0.5), Disorder(seed=1, shuffle=1.0)])
async def test_reordering_loses_nothing(disorder: Disorder) -> None:
    received = await seen(disorder)
    assert sorted(SENT) == sorted(received)
    assert received != SENT


async def test_a_swallowed_confirm_is_an_error_for_what_arrived() -> None:
    received = await seen(Disorder(seed=1, swallow_confirm=0.5))
    assert b"unconfirmed" in received
    assert SENT == [body for body in received if body != b"unconfirmed"]
