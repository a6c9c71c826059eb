"""Hints over RabbitMQ: to every other host, on a way of their own, acknowledged last, and never in the way."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.broker.rabbitmq_hints import PAYLOAD_BYTES, RabbitWakeups
from nerve.protocol.topics import hints
from support.rabbit import virtual_host
from support.waiting import soon, until

pytestmark = pytest.mark.external

EXCHANGE = hints("local", None)


@asynccontextmanager
async def hosts(url: str, number: int) -> AsyncGenerator[list[RabbitWakeups]]:
    async with AsyncExitStack() as stack:
        made = [RabbitWakeups(RabbitSettings(url=url), EXCHANGE) for _ in range(number)]
        for each in made:
            each.open()
            stack.push_async_callback(each.aclose)
        for each in made:
            await soon(each.connected.wait())
        yield made


@pytest.mark.capability("E11.1")
async def test_a_hint_reaches_every_host_and_only_who_listens() -> None:
    heard: list[tuple[int, str]] = []

    def note(number: int, channel: str) -> None:
        heard.append((number, channel))

    async with virtual_host() as url, hosts(url, 3) as made:
        for number, each in enumerate(made):
            each.listen("turn:*", partial(note, number))
        made[0].listen("other", lambda channel: heard.append((9, channel)))
        for name in ("turn:a", "turn:b", "turn:a", "nobody"):
            made[1].ring(name)
        wanted = [(number, f"turn:{name}") for number in range(3) for name in "ab"]
        await until(lambda: len(heard) >= len(wanted), "all of them heard it")
        assert sorted(heard) == wanted


@pytest.mark.capability("E11.4")
async def test_a_hint_is_acknowledged_after_every_listener_of_the_host_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aio_pika import IncomingMessage

    order: list[str] = []
    acknowledge = IncomingMessage.ack

    async def ack(message: IncomingMessage, multiple: bool = False) -> None:
        order.append("acknowledged")
        await acknowledge(message, multiple)

    def note(said: str, channel: str) -> None:
        order.append(said)

    monkeypatch.setattr(IncomingMessage, "ack", ack)
    async with virtual_host() as url, hosts(url, 2) as (sender, receiver):
        for name in ("first", "second", "third"):
            receiver.listen("turn:*", partial(note, name))
        sender.ring("turn:a")
        await until(lambda: order.count("acknowledged") == 2, "both queues were acknowledged")
        heard = [order.index(name) for name in ("first", "second", "third")]
        assert heard == sorted(heard)
        # The sender hears nothing of its own and acknowledges at any time; the receiver does so last.
        assert order[-1] == "acknowledged" or order.index("acknowledged") < heard[0]
        assert max(i for i, each in enumerate(order) if each == "acknowledged") > heard[-1]


@pytest.mark.capability("E11.3")
async def test_a_hint_without_a_broker_fails_nothing_and_comes_again_with_it() -> None:
    heard: list[str] = []
    away = RabbitWakeups(RabbitSettings(url="amqp://guest:guest@127.0.0.1:1/"), EXCHANGE)
    away.open()
    away.listen("turn:*", heard.append)
    away.ring("turn:here")
    await until(lambda: heard == ["turn:here"], "this process heard it all the same")
    await soon(away.aclose())
    async with virtual_host() as url, hosts(url, 2) as (sender, receiver):
        receiver.listen("turn:*", heard.append)
        channel = await receiver._link._open()  # pyright: ignore[reportPrivateUsage]
        await channel.close()
        await until(lambda: not receiver.connected.is_set(), "the loss was seen", seconds=20)
        sender.ring("turn:lost")
        await soon(receiver.connected.wait())
        sender.ring("turn:again")
        await until(lambda: "turn:again" in heard, "hints come in again")


@pytest.mark.report("U101")
async def test_many_long_names_travel_in_messages_of_a_bounded_size() -> None:
    heard: set[str] = set()
    async with virtual_host() as url, hosts(url, 2) as (sender, receiver):
        receiver.listen("turn:*", heard.add)
        names = {f"turn:{number}-{'x' * 500}" for number in range(200)}
        assert sum(map(len, names)) > 5 * PAYLOAD_BYTES
        for name in names:
            sender.ring(name)
        await until(lambda: heard == names, "every name was heard")
        await asyncio.sleep(0)
