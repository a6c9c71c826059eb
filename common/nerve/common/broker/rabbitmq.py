"""RabbitMQ: a quorum queue per topic, confirmed and mandatory publishing, consumers that only enqueue.

Connections are ours and not aio-pika's robust ones: those cancel running callbacks when a channel
closes, raise into whoever publishes during an outage, and declare again what an operator deleted.
There are two, one to publish and one to consume, so that a flow-controlled publisher stalls nobody.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, final
from urllib.parse import urlsplit

from nerve.common import faults
from nerve.common.broker.port import Credit, check_bodies
from nerve.common.clock import Clock, SystemClock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log, register_secret
from nerve.protocol.errors import BrokerUnavailable, NotFound
from nerve.protocol.identity import new_uuid7

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection

    from nerve.common.broker.rabbitmq_consumer import RabbitConsumer

V = TypeVar("V")

_log = get_log("nerve.common.rabbitmq")

WINDOW = 64
PREFETCH_BUNDLES = 32
DELIVERY_LIMIT = 1000
"""A requeue counts too, and our own ledger counts the tries of an envelope: this is the last resort."""

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
@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """How to reach a server. `create` False: queues must exist, `nerve provision` makes them."""

    url: str = field(repr=False)
    create: bool = True
    publish_seconds: float = 10.0
    connect_seconds: float = 10.0
    heartbeat_seconds: int = 10
    watch_seconds: float = 10.0
    hold_seconds: float = 2.0
    ca_file: str | None = None

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}:{parts.port or ''}{parts.path}"


class Link:
    """One connection that is made when it is needed and again when it was lost."""

    def __init__(self, settings: RabbitSettings, name: str, clock: Clock) -> None:
        self._settings = settings
        self._name = name
        self._clock = clock
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def channel(self, *, confirms: bool) -> "AbstractChannel":
        """A new channel. Raises BrokerUnavailable."""
        return await self.guarded(lambda: self._channel(confirms))

    async def guarded(self, call: Callable[[], Awaitable[V]]) -> V:
        """What `call` returns within the connect deadline, or BrokerUnavailable with a plain cause."""
        from aiormq.exceptions import AMQPError, ChannelClosed

        if self._closed:
            raise unavailable(self._settings, RuntimeError("closed"))
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                return await call()
        except (AMQPError, OSError, TimeoutError, RuntimeError) as error:
            if not isinstance(error, ChannelClosed):
                # The connection is not to be trusted: a server that crashed one channel (RabbitMQ
                # 3.10 does where a queue is consumed while it is being made) closes all of it.
                self._discard()
            raise unavailable(self._settings, error) from error

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            task = asyncio.get_running_loop().create_task(_quietly(connection), name="rabbitmq")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self._closed = True
        self._discard()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _channel(self, confirms: bool) -> "AbstractChannel":
        connection = await self._open()
        return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)

    async def _open(self) -> "AbstractConnection":
        import aio_pika

        async with self._lock:
            if self._connection is None or self._connection.is_closed:
                settings = self._settings
                context = None
                if settings.url.startswith("amqps:"):
                    context = ssl.create_default_context(cafile=settings.ca_file)
                self._connection = await aio_pika.connect(
                    settings.url,
                    ssl_context=context,
                    client_properties={"connection_name": self._name},
                    heartbeat=settings.heartbeat_seconds,
                    timeout=settings.connect_seconds,
                )
            return self._connection


async def _quietly(connection: "AbstractConnection") -> None:
    try:
        async with asyncio.timeout(2):
            await connection.close()
    except Exception as error:
        _log.debug("a connection did not close in time", error=error)


async def declare(channel: "AbstractChannel", topic: str, *, create: bool) -> None:
    """Make the topic's queue and its dead-letter queue, or see that they exist."""
    if not create:
        await channel.declare_queue(topic, passive=True)
        return
    dead = f"{topic}.dead"
    await channel.declare_queue(dead, durable=True, arguments={"x-queue-type": "quorum"})
    await channel.declare_queue(
        topic,
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
            "x-delivery-limit": DELIVERY_LIMIT,
        },
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
        except BrokerUnavailable:
            raise
        except Exception as error:
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
            if self._channel is None or self._channel.is_closed:
                self._declared.clear()
                self._channel = await self._link.channel(confirms=True)
            if topic not in self._declared:
                channel = self._channel
                create = self._settings.create
                await self._link.guarded(lambda: declare(channel, topic, create=create))
                self._declared.add(topic)
            return self._channel

    def _forget(self, topic: str, channel: "AbstractChannel") -> None:
        """After an error nothing is known of the channel or the queue: both are looked at again."""
        self._declared.discard(topic)
        if self._channel is channel and channel.is_closed:
            self._channel = None


@final
class RabbitBroker:
    """`Broker` over one RabbitMQ server or cluster."""

    def __init__(self, settings: RabbitSettings | str, *, clock: Clock | None = None) -> None:
        """Raises BadInput only when used; `pip install 'nerve[rabbitmq]'` brings what it needs."""
        from nerve.common.broker.rabbitmq_consumer import RabbitConsumer

        if isinstance(settings, str):
            settings = RabbitSettings(url=settings)
        password = urlsplit(settings.url).password
        if password:
            register_secret(password)
        self._settings = settings
        self._clock = clock or SystemClock()
        self._publisher = RabbitPublisher(
            Link(settings, "nerve publisher", self._clock), settings, self._clock
        )
        self._consuming = Link(settings, "nerve consumer", self._clock)
        self._make = RabbitConsumer
        self._consumers: list[RabbitConsumer] = []

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed, and an absent server is waited for."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        check_bodies(topic, bodies)
        await self._publisher.publish(topic, bodies)

    def consume(self, topic: str, group: str, *, credit: Credit) -> "RabbitConsumer":
        consumer = self._make(
            self._consuming, self._settings, topic, credit=credit, clock=self._clock
        )
        self._consumers.append(consumer)
        return consumer

    async def provision(self, topics: Sequence[str], *, create: bool) -> list[str]:
        """Make the queues of `topics`, or (`create` False) name those that are missing."""
        missing: list[str] = []
        for topic in topics:
            if not await self._stands(topic, create=create):
                missing.append(topic)
        return missing

    async def _stands(self, topic: str, *, create: bool) -> bool:
        channel = await self._consuming.channel(confirms=False)
        try:
            await self._consuming.guarded(lambda: declare(channel, topic, create=create))
        except BrokerUnavailable as error:
            if create or "NOT_FOUND" not in str(error.__cause__):
                raise
            return False
        await channel.close()
        return True

    def troubles(self) -> list[str]:
        return [each.trouble for each in self._consumers if each.trouble is not None]

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        await self._publisher.close()
        await self._consuming.close()


def unavailable(
    settings: RabbitSettings, error: BaseException, topic: str | None = None
) -> BrokerUnavailable:
    """The plain cause, without anything that the server may have echoed of a password."""
    what = type(error).__name__
    about = "" if topic is None else f" for {topic}"
    missing = isinstance(error, NotFound) or "NOT_FOUND" in str(error) or what == "PublishError"
    step = (
        "run `nerve provision app.py --broker ...` to make what is missing"
        if missing
        else "it is tried again by itself; `nerve doctor` says what can be reached"
    )
    return BrokerUnavailable(
        f"RabbitMQ at {settings.shown} did not answer{about}: {what}",
        where="--broker",
        next_step=step,
    )


async def _all(calls: Sequence[Awaitable[None]]) -> None:
    """Every publish to its end: the first error is raised after the others have settled."""
    if len(calls) == 1:
        await calls[0]
        return
    errors = [
        each for each in await asyncio.gather(*calls, return_exceptions=True) if each is not None
    ]
    if errors:
        raise errors[0]


def backoff() -> Backoff:
    """Between two attempts to reach a server that is away."""
    return Backoff(first_seconds=0.1, most_seconds=2.0)
