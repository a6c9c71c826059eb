"""What every broker promises: at least once to one of the group, within the credit, in order."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import pytest

from nerve.common.broker import Broker, Consumer, Delivery, envelopes_in
from nerve.common.clock import settle
from nerve.protocol.errors import BrokerUnavailable, TooLarge
from support.waiting import running, soon


class Link(Protocol):
    @property
    def sender(self) -> Broker: ...

    @property
    def receiver(self) -> Broker: ...


TOPIC = "nerve.test.hands.commands"


def consume(broker: Broker, *, topic: str = TOPIC, credit: int = 1000) -> Consumer:
    return broker.consume(topic, f"{topic}.group", credit=lambda: credit)


def bundle(*names: str) -> bytes:
    return "\n".join(f'{{"name":"{name}"}}' for name in names).encode()


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def collect(consumer: Consumer, count: int) -> list[Delivery]:
    """The next `count` deliveries, not yet acknowledged."""
    found: list[Delivery] = []
    while len(found) < count:
        found += await soon(consumer.receive())
    return found


async def test_what_is_published_arrives_in_order(link: Link) -> None:
    consumer = consume(link.receiver)
    sent = [bundle(str(number)) for number in range(20)]
    async with running(link.sender.publish(TOPIC, sent)) as published:
        received = await collect(consumer, 20)
        consumer.ack(received)
        await soon(published)
    assert sent == bodies(received)
    assert {TOPIC} == {delivery.topic for delivery in received}


async def test_bytes_arrive_unchanged(link: Link) -> None:
    consumer = consume(link.receiver)
    body = bytes(range(256)) + bundle("a", "b")
    async with running(link.sender.publish(TOPIC, [body])):
        [received] = await collect(consumer, 1)
        consumer.ack([received])
    assert body == received.body


async def test_what_was_published_before_anybody_consumed_is_kept(link: Link) -> None:
    await soon(link.sender.publish(TOPIC, [bundle("early")]))
    [received] = await collect(consume(link.receiver), 1)
    assert bundle("early") == received.body


async def test_topics_do_not_mix(link: Link) -> None:
    first, second = consume(link.receiver, topic="t.a"), consume(link.receiver, topic="t.b")
    async with asyncio.TaskGroup() as group:
        group.create_task(link.sender.publish("t.a", [bundle("a")]))
        group.create_task(link.sender.publish("t.b", [bundle("b")]))
        for consumer, expected in ((first, "a"), (second, "b")):
            received = await collect(consumer, 1)
            consumer.ack(received)
            assert [bundle(expected)] == bodies(received)


async def test_each_body_goes_to_one_member_of_the_group(link: Link) -> None:
    consumers = [consume(link.receiver, credit=1) for _ in range(3)]
    sent = [bundle(str(number)) for number in range(60)]
    received: list[bytes] = []
    everything = asyncio.Event()

    async def member(consumer: Consumer) -> None:
        while True:
            deliveries = await consumer.receive()
            received.extend(bodies(deliveries))
            consumer.ack(deliveries)
            if len(received) >= len(sent):
                everything.set()
            await asyncio.sleep(0)

    async with running(asyncio.gather(*map(member, consumers))):
        await soon(link.sender.publish(TOPIC, sent))
        await soon(everything.wait())
    assert sorted(sent) == sorted(received)


async def test_what_was_not_acknowledged_comes_back_after_close(link: Link) -> None:
    sent = [bundle("a"), bundle("b"), bundle("c")]
    await soon(link.sender.publish(TOPIC, sent))
    first = consume(link.receiver)
    received = await collect(first, 3)
    first.ack(received[:1])
    await soon(first.close())
    again = await collect(consume(link.receiver), 2)
    # What comes back after a close or a death comes in any order.
    assert sent[1:] == sorted(bodies(again))


async def test_what_was_acknowledged_does_not_come_back(link: Link) -> None:
    first = consume(link.receiver)
    await_publish = asyncio.ensure_future(link.sender.publish(TOPIC, [bundle("a")]))
    first.ack(await collect(first, 1))
    await soon(await_publish)
    await soon(first.close())
    await soon(link.sender.publish(TOPIC, [bundle("b")]))
    assert [bundle("b")] == bodies(await collect(consume(link.receiver), 1))


async def test_a_refused_body_is_seen_again(link: Link) -> None:
    consumer = consume(link.receiver)
    async with running(link.sender.publish(TOPIC, [bundle("a")])) as published:
        consumer.nack(await collect(consumer, 1))
        again = await collect(consumer, 1)
        consumer.ack(again)
        await soon(published)
    assert [bundle("a")] == bodies(again)


async def test_repeated_and_stale_settlements_do_no_harm(link: Link) -> None:
    consumer = consume(link.receiver)
    async with running(link.sender.publish(TOPIC, [bundle("a")])) as published:
        received = await collect(consumer, 1)
        for _ in range(2):
            consumer.ack(received)
        consumer.nack(received)
        await soon(published)
    stranger = Delivery(topic=TOPIC, body=b"x", token="another broker's")
    consumer.ack([stranger])
    async with running(link.sender.publish(TOPIC, [bundle("b")])):
        consumer.ack(received)
        assert [bundle("b")] == bodies(await collect(consumer, 1))


async def test_nothing_is_taken_without_credit_and_a_poke_looks_again(link: Link) -> None:
    credit = 0
    consumer = link.receiver.consume(TOPIC, "group", credit=lambda: credit)
    async with (
        running(link.sender.publish(TOPIC, [bundle("a")])),
        running(consumer.receive()) as receiving,
    ):
        await settle(200)
        probe = consume(link.receiver)
        [seen] = await collect(probe, 1)
        assert not receiving.done()
        probe.nack([seen])
        await soon(probe.close())
        credit = 1
        consumer.poke()
        assert [bundle("a")] == bodies(await soon(receiving))


async def test_credit_bounds_the_envelopes_that_are_taken(link: Link) -> None:
    sent = [bundle("a", "b"), bundle("c"), bundle("d", "e", "f"), bundle("g")]
    await soon(link.sender.publish(TOPIC, sent))
    consumer = consume(link.receiver, credit=4)
    taken: list[bytes] = []
    while len(taken) < len(sent):
        deliveries = bodies(await soon(consumer.receive()))
        assert sum(map(envelopes_in, deliveries)) <= 4
        taken += deliveries
    assert sent == taken


async def test_a_bundle_larger_than_the_credit_is_taken_alone(link: Link) -> None:
    large = bundle(*map(str, range(10)))
    await soon(link.sender.publish(TOPIC, [large, bundle("next")]))
    consumer = consume(link.receiver, credit=3)
    assert [large] == bodies(await soon(consumer.receive()))
    assert [bundle("next")] == bodies(await soon(consumer.receive()))


@pytest.mark.parametrize("turns", range(12))
async def test_a_cancelled_receive_loses_nothing(link: Link, turns: int) -> None:
    consumer = consume(link.receiver)
    receiving = asyncio.ensure_future(consumer.receive())
    await settle(2)
    async with running(link.sender.publish(TOPIC, [bundle("a")])):
        await settle(turns)
        receiving.cancel()
        await asyncio.wait([receiving])
        came = [] if receiving.cancelled() else bodies(receiving.result())
        if not came:
            came = bodies(await collect(consumer, 1))
    assert [bundle("a")] == came


async def test_many_publishers_lose_and_double_nothing(link: Link) -> None:
    consumer = consume(link.receiver)
    sent = [[bundle(f"{author}.{number}") for number in range(25)] for author in range(8)]

    async def author(own: list[bytes]) -> None:
        for body in own:
            await link.sender.publish(TOPIC, [body])

    received: list[bytes] = []
    async with running(asyncio.gather(*map(author, sent))) as publishing:
        while len(received) < 200:
            deliveries = await soon(consumer.receive())
            received += bodies(deliveries)
            consumer.ack(deliveries)
        await soon(publishing)
    assert sorted(body for own in sent for body in own) == sorted(received)
    for own in sent:
        assert own == [body for body in received if body in own]


async def test_a_cancelled_publish_harms_no_other(link: Link) -> None:
    consumer = consume(link.receiver)
    async with running(link.sender.publish(TOPIC, [bundle("given up")])):
        await settle(1)
    async with running(link.sender.publish(TOPIC, [bundle("b")])):
        received: list[bytes] = []
        while bundle("b") not in received:
            deliveries = await soon(consumer.receive())
            received += bodies(deliveries)
            consumer.ack(deliveries)


async def test_what_no_broker_would_carry_is_refused_at_once(link: Link) -> None:
    with pytest.raises(TooLarge, match="over the limit"):
        await link.sender.publish(TOPIC, [b"x" * (1024 * 1024 + 1)])
    with pytest.raises(ValueError, match="empty message"):
        await link.sender.publish(TOPIC, [b""])


async def test_the_largest_message_arrives(link: Link) -> None:
    body = b"x" * (1024 * 1024)
    consumer = consume(link.receiver)
    async with running(link.sender.publish(TOPIC, [body])):
        assert [body] == bodies(await collect(consumer, 1))


async def test_a_closed_consumer_ends_its_receive_with_an_error(link: Link) -> None:
    consumer = consume(link.receiver)
    receiving = asyncio.ensure_future(consumer.receive())
    await settle()
    await soon(consumer.close())
    await soon(consumer.close())
    with pytest.raises(BrokerUnavailable):
        await soon(receiving)


async def test_a_closed_broker_confirms_nothing(link: Link) -> None:
    await soon(link.sender.close())
    await soon(link.sender.close())
    with pytest.raises(BrokerUnavailable):
        await soon(link.sender.publish(TOPIC, [bundle("a")]))
