"""The broker inside one process: nothing to flush, so a confirm means that the receiver acknowledged.

A crash loses every queue. Nothing is lost with them: while a topic has a consumer, `publish` returns only
after the consumer acknowledged, which it does after its own commit, so the sender's outbox keeps the row
until then. Waiting for the receiver's credit is back pressure and has no deadline; a receiver that
has credit and does not acknowledge has. Without any consumer a body is queued and confirmed at once;
after a crash the layers above find out by their own repeats and questions.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import final

from nerve.common import faults
from nerve.common.broker.port import Credit, Delivery, check_bodies, envelopes_in
from nerve.common.clock import Clock, SystemClock, wait_event, within
from nerve.protocol.errors import BrokerUnavailable

QUEUED_BODIES_MAX = 100_000

faults.register(
    "common",
    [
        "common.broker.memory.before_publish",
        "common.broker.memory.before_confirm",
        "common.broker.memory.before_ack",
        "common.broker.memory.after_ack",
    ],
)


@final
@dataclass(slots=True, eq=False)
class _Message:
    number: int
    body: bytes
    published_at_ms: int
    acked: asyncio.Future[None] | None
    holder: "MemoryConsumer | None" = None


@final
class _Topic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[_Message] = deque()
        self.consumers: list[MemoryConsumer] = []

    def wake(self) -> None:
        for consumer in self.consumers:
            consumer.poke()

    def give_back(self, messages: Sequence[_Message]) -> None:
        for message in messages:
            message.holder = None
        merged = sorted((*messages, *self.ready), key=lambda message: message.number)
        self.ready = deque(merged)
        self.wake()

    def stalled(self) -> bool:
        """Whether somebody could take what is ready and does not."""
        return any(consumer.willing() for consumer in self.consumers)


@final
class MemoryBroker:
    def __init__(self, *, clock: Clock | None = None, publish_seconds: float = 10.0) -> None:
        self._clock = clock or SystemClock()
        self._publish_seconds = publish_seconds
        self._topics: dict[str, _Topic] = {}
        self._numbers = count(1)
        self._closed = False

    async def open(self) -> None:
        self._closed = False

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        check_bodies(topic, bodies)
        if self._closed:
            raise _closed(topic)
        await faults.apoint("common.broker.memory.before_publish")
        queue = self._topic(topic)
        if len(queue.ready) + len(bodies) > QUEUED_BODIES_MAX:
            raise _full(topic)
        messages = self._queue(queue, bodies)
        await self._confirmed(queue, messages)
        await faults.apoint("common.broker.memory.before_confirm")

    def consume(self, topic: str, group: str, *, credit: Credit) -> "MemoryConsumer":
        queue = self._topic(topic)
        consumer = MemoryConsumer(queue, credit, self._clock)
        queue.consumers.append(consumer)
        return consumer

    async def waiting(self, topics: Sequence[str]) -> Mapping[str, int]:
        return {
            name: sum(envelopes_in(message.body) for message in self._topics[name].ready)
            for name in topics
            if name in self._topics
        }

    async def close(self) -> None:
        self._closed = True
        for topic in self._topics.values():
            for consumer in topic.consumers[:]:
                await consumer.close()

    def _topic(self, name: str) -> _Topic:
        return self._topics.setdefault(name, _Topic(name))

    def _queue(self, queue: _Topic, bodies: Sequence[bytes]) -> list[_Message]:
        attached = bool(queue.consumers)
        loop = asyncio.get_running_loop()
        now_ms = self._clock.now_ms()
        messages = [
            _Message(next(self._numbers), body, now_ms, loop.create_future() if attached else None)
            for body in bodies
        ]
        queue.ready.extend(messages)
        queue.wake()
        return messages

    async def _confirmed(self, queue: _Topic, messages: Sequence[_Message]) -> None:
        try:
            for message in messages:
                await self._acked(queue, message)
        except BaseException:
            _withdraw(queue, messages)
            raise

    async def _acked(self, queue: _Topic, message: _Message) -> None:
        while message.acked is not None and not message.acked.done():
            try:
                async with within(self._clock, self._publish_seconds):
                    await asyncio.shield(message.acked)
            except TimeoutError:
                if message.holder is not None or queue.stalled() or not queue.consumers:
                    raise _silent(queue.name, self._publish_seconds) from None
        if message.acked is not None:
            message.acked.result()


@final
class MemoryConsumer:
    def __init__(self, topic: _Topic, credit: Credit, clock: Clock) -> None:
        self._topic = topic
        self._credit = credit
        self._clock = clock
        self._look = asyncio.Event()
        self._held: dict[int, _Message] = {}
        self._closed = False

    def willing(self) -> bool:
        return not self._closed and self._credit() > 0

    async def receive(self) -> Sequence[Delivery]:
        while not self._closed:
            self._look.clear()
            taken = self._take()
            if taken:
                return [self._delivery(message) for message in taken]
            await wait_event(self._clock, self._look, None)
        raise _closed(self._topic.name)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        faults.point("common.broker.memory.before_ack")
        for message in self._let_go(deliveries):
            if message.acked is not None and not message.acked.done():
                message.acked.set_result(None)
        faults.point("common.broker.memory.after_ack")

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._topic.give_back(self._let_go(deliveries))

    def poke(self) -> None:
        self._look.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._topic.consumers.remove(self)
        self._topic.give_back(list(self._held.values()))
        self._held.clear()
        self.poke()
        if not self._topic.consumers:
            self._abandon()

    def _abandon(self) -> None:
        """Nobody is left to acknowledge: the senders keep what they have and publish it again."""
        for message in self._topic.ready:
            if message.acked is not None and not message.acked.done():
                message.acked.set_exception(_closed(self._topic.name))

    def _delivery(self, message: _Message) -> Delivery:
        return Delivery(
            topic=self._topic.name,
            body=message.body,
            token=message.number,
            published_at_ms=message.published_at_ms,
        )

    def _take(self) -> list[_Message]:
        room = self._credit()
        taken: list[_Message] = []
        while self._topic.ready and room > 0:
            size = envelopes_in(self._topic.ready[0].body)
            if taken and size > room:
                break
            message = self._topic.ready.popleft()
            message.holder = self
            self._held[message.number] = message
            taken.append(message)
            room -= size
        return taken

    def _let_go(self, deliveries: Sequence[Delivery]) -> list[_Message]:
        found = [self._held.pop(d.token, None) for d in deliveries if isinstance(d.token, int)]
        return [message for message in found if message is not None]


def _withdraw(queue: _Topic, messages: Sequence[_Message]) -> None:
    """What nobody took yet is not delivered beside its own repetition."""
    unwanted = {message.number for message in messages if message.holder is None}
    queue.ready = deque(message for message in queue.ready if message.number not in unwanted)
    for message in messages:
        acked, message.acked = message.acked, None
        if acked is not None and acked.done():
            acked.exception()


def _closed(topic: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        "the broker inside this process is closed",
        where=topic,
        next_step="The message stays in the outbox and is sent when the host runs again",
    )


def _full(topic: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"{QUEUED_BODIES_MAX:,} messages wait for a consumer",
        where=topic,
        next_step="Start the Hands of this route; the message stays in the outbox meanwhile",
    )


def _silent(topic: str, seconds: float) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"the receiver did not acknowledge within {seconds:g} s",
        where=topic,
        next_step="It is sent again; look at the receiver's log if this goes on",
    )
