"""RabbitMQ: a quorum queue per topic, confirmed and mandatory publishing, consumers that only enqueue.

There are two connections, one to publish and one to consume, so that a flow-controlled publisher stalls
nobody.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, final
from urllib.parse import unquote, urlsplit

from nerve.common import faults
from nerve.common.broker import rabbitmq_limits, rabbitmq_queues
from nerve.common.broker.port import Credit, check_bodies
from nerve.common.broker.rabbitmq_address import RabbitSettings, rabbitmq_at
from nerve.common.broker.rabbitmq_consumer import RabbitConsumer
from nerve.common.broker.rabbitmq_link import Link, is_ours, unavailable
from nerve.common.broker.served import Lack, Limit
from nerve.common.clock import Clock, SystemClock
from nerve.common.logs import register_secret
from nerve.protocol.identity import new_uuid7

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel

WINDOW = 64

faults.register(
    "common",
    [
        "common.rabbitmq.before_publish",
        "common.rabbitmq.after_publish",
        "common.rabbitmq.received",
        "common.rabbitmq.before_ack",
        "common.rabbitmq.after_ack",
    ],
)


@final
class RabbitPublisher:
    """One confirmed channel with a bounded window."""

    def __init__(self, link: Link, settings: RabbitSettings, clock: Clock) -> None:
        self._link = link
        self._settings = settings
        self._clock = clock
        self._window = asyncio.Semaphore(WINDOW)
        self._opening = asyncio.Lock()
        self._channel: AbstractChannel | None = None
        self._declared: set[str] = set()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        channel = await self._ready(topic)
        await faults.apoint("common.rabbitmq.before_publish")
        try:
            async with asyncio.timeout(self._settings.publish_seconds):
                await _all([self._one(channel, topic, body) for body in bodies])
        except BaseException as error:
            if is_ours(error):
                raise
            self._forget(topic, channel)
            raise unavailable(self._settings, error, topic) from error
        await faults.apoint("common.rabbitmq.after_publish")

    async def close(self) -> None:
        self._channel = None
        await self._link.close()

    async def _one(self, channel: "AbstractChannel", topic: str, body: bytes) -> None:
        import aio_pika

        now = self._clock.now_ms()
        # A message id is never in flight twice: a returned message is told to its publisher by it.
        message = aio_pika.Message(
            body,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=new_uuid7(now),
            headers={"published_at_ms": now},
        )
        async with self._window:
            await channel.default_exchange.publish(message, routing_key=topic, mandatory=True)

    async def _ready(self, topic: str) -> "AbstractChannel":
        async with self._opening:
            channel = self._channel
            if channel is None or channel.is_closed:
                self._declared.clear()
                channel = self._channel = await self._link.channel(confirms=True)
            if self._settings.create and topic not in self._declared:
                await rabbitmq_queues.ensure(self._link, topic)
                self._declared.add(topic)
            return channel  # `close` may have taken it away meanwhile; then it is closed

    def _forget(self, topic: str, channel: "AbstractChannel") -> None:
        """After an error nothing is known of the channel or the queue: both are looked at again."""
        self._declared.discard(topic)
        if self._channel is channel and channel.is_closed:
            self._channel = None


@final
class RabbitBroker:
    """`Broker` over one RabbitMQ server or cluster."""

    def __init__(self, settings: RabbitSettings | str, *, clock: Clock | None = None) -> None:
        """Raises BadInput where an address cannot be meant."""
        if isinstance(settings, str):
            settings = rabbitmq_at(settings, publish_seconds=10.0)
        for url in (settings.url, settings.management or ""):
            if password := urlsplit(url).password:
                register_secret(password)
                register_secret(unquote(password))
        self._settings = settings
        self._clock = clock or SystemClock()
        self._publisher = RabbitPublisher(
            Link(settings, "nerve publisher", self._clock), settings, self._clock
        )
        self._consuming = Link(settings, "nerve consumer", self._clock)
        self._consumers: list[RabbitConsumer] = []

    @property
    def shown(self) -> str:
        return self._settings.shown

    @property
    def creates(self) -> bool:
        return self._settings.create

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed, and an absent server is waited for."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        check_bodies(topic, bodies)
        await self._publisher.publish(topic, bodies)

    def consume(self, topic: str, group: str, *, credit: Credit) -> RabbitConsumer:
        consumer = RabbitConsumer(
            self._consuming, self._settings, topic, credit=credit, clock=self._clock
        )
        self._consumers.append(consumer)
        return consumer

    async def waiting(self, topics: Sequence[str]) -> Mapping[str, int]:
        found = {each: await rabbitmq_queues.counted(self._consuming, each) for each in topics}
        return {topic: count[0] for topic, count in found.items() if count is not None}

    async def lacking(
        self, topics: Sequence[str], *, reads: Sequence[str], create: bool
    ) -> list[Lack]:
        link, settings = self._consuming, self._settings
        lacks = await rabbitmq_queues.missing(link, settings, topics, create=create)
        standing = set(topics) - {each.topic for each in lacks}
        return [
            *lacks,
            *await rabbitmq_queues.forbidden(
                link, settings, [each for each in reads if each in standing]
            ),
        ]

    async def limits(self, topics: Sequence[str]) -> list[Limit]:
        return await rabbitmq_limits.limits(self._consuming, self._settings, topics)

    async def retention_ms(self, topics: Sequence[str]) -> int | None:
        return await rabbitmq_limits.retention_ms(self._settings, topics)

    def troubles(self) -> list[str]:
        return [each.trouble for each in self._consumers if each.trouble is not None]

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        await self._publisher.close()
        await self._consuming.close()


async def _all(calls: Sequence[Awaitable[None]]) -> None:
    """Every publish to its end: the first error is raised after the others have settled."""
    if len(calls) == 1:
        await calls[0]
        return
    for error in await asyncio.gather(*calls, return_exceptions=True):
        if error is not None:
            raise error
