"""One consumer of a RabbitMQ queue: a channel of its own, and a buffer that callbacks only fill."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from nerve.common import faults
from nerve.common.broker import rabbitmq_queues
from nerve.common.broker.port import Credit, Delivery, envelopes_in
from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.broker.rabbitmq_link import Link, backoff, is_ours
from nerve.common.clock import Clock
from nerve.common.logs import get_log
from nerve.protocol.errors import BrokerUnavailable

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

_log = get_log("nerve.common.rabbitmq")

PREFETCH_BUNDLES = 32


@dataclass(frozen=True, slots=True)
class _Held:
    """A message and the channel it came through: only that one may acknowledge it."""

    message: "AbstractIncomingMessage"
    generation: int


@final
class RabbitConsumer:
    """Implements `Consumer`. What waits here for credit longer than a moment goes back to others."""

    def __init__(
        self, link: Link, settings: RabbitSettings, topic: str, *, credit: Credit, clock: Clock
    ) -> None:
        self._link = link
        self._settings = settings
        self._topic = topic
        self._credit = credit
        self._clock = clock
        self._buffer: deque[_Held] = deque()
        self._ready = asyncio.Event()
        self._generation = 0
        self._channel: AbstractChannel | None = None
        self._paused = False
        self._closed = False
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._acks: set[asyncio.Task[None]] = set()
        self._arrivals = 0
        self._unsettled = 0
        self.trouble: str | None = f"{topic} is not consumed yet"
        """Why the server does not know this consumer; None while it does, or while there is no credit."""

    async def receive(self) -> Sequence[Delivery]:
        self._start()
        while True:
            if self._closed:
                raise BrokerUnavailable(
                    f"the consumer of {self._topic} was closed",
                    where=self._topic,
                    next_step="consume again",
                )
            if taken := self._take():
                await faults.apoint("common.rabbitmq.received")
                return taken
            self._ready.clear()
            await self._ready.wait()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(deliveries, accept=True)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(deliveries, accept=False)

    def poke(self) -> None:
        self._ready.set()

    async def close(self) -> None:
        self._closed = True
        self._ready.set()
        self._lost.set()
        if self._acks:
            await asyncio.wait(self._acks, timeout=2)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._shut()

    def _start(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(
                self._stay(), name=f"rabbitmq:{self._topic}"
            )

    def _take(self) -> list[Delivery]:
        credit = self._credit()
        taken: list[Delivery] = []
        while self._buffer and credit > 0:
            held = self._buffer[0]
            if held.generation != self._generation:
                self._buffer.popleft()
                continue
            count = envelopes_in(held.message.body)
            if taken and count > credit:
                break
            self._buffer.popleft()
            credit -= count
            taken.append(self._delivery(held))
        return taken

    def _delivery(self, held: _Held) -> Delivery:
        at = held.message.headers.get("published_at_ms")
        return Delivery(
            topic=self._topic,
            body=held.message.body,
            token=held,
            published_at_ms=at if isinstance(at, int) else None,
        )

    def _settle(self, deliveries: Sequence[Delivery], *, accept: bool) -> None:
        held = [each.token for each in deliveries if isinstance(each.token, _Held)]
        fresh = [each for each in held if each.generation == self._generation]
        if fresh:
            self._unsettled -= len(fresh)
            work = self._acknowledge(fresh, accept=accept)
            task = asyncio.get_running_loop().create_task(work, name="rabbitmq-ack")
            self._acks.add(task)
            task.add_done_callback(self._acks.discard)

    async def _acknowledge(self, held: Sequence[_Held], *, accept: bool) -> None:
        await faults.apoint("common.rabbitmq.before_ack")
        for each in held:
            try:
                if accept:
                    await each.message.ack()
                else:
                    await each.message.nack(requeue=True)
            except BaseException as error:
                if is_ours(error):
                    raise
                # Its channel is gone: the broker delivers it again, and the inbox knows it.
                _log.debug("an acknowledgement came too late", topic=self._topic, error=error)
                return
        await faults.apoint("common.rabbitmq.after_ack")

    async def _stay(self) -> None:
        """Consume for ever: after a loss again, and while there is no credit not at all."""
        failures = 0
        pause = backoff()
        while not self._closed:
            try:
                await self._consume()
                failures = 0
                self.trouble = None
                await self._watch()
                if self._lost.is_set():
                    self.trouble = f"the channel that consumed {self._topic} was lost"
            except BaseException as error:
                if is_ours(error):
                    raise
                failures += 1
                self.trouble = f"{self._topic} is not consumed: {error}"
                _log.warning(
                    "consuming was interrupted, it goes on by itself",
                    topic=self._topic,
                    cause=f"rabbitmq:{self._topic}",
                    error=error,
                )
            await self._shut()
            if failures:
                await self._clock.sleep(pause.after(failures))

    async def _consume(self) -> None:
        await self._until_credit()
        if self._settings.create:
            await rabbitmq_queues.ensure(self._link, self._topic)
        channel = await self._link.channel()
        self._generation += 1
        self._channel = channel
        self._lost.clear()
        channel.close_callbacks.add(self._on_close)
        await self._link.guarded(lambda: self._subscribe(channel))

    async def _subscribe(self, channel: "AbstractChannel") -> None:
        await channel.set_qos(prefetch_count=PREFETCH_BUNDLES)
        generation = self._generation

        async def arrived(message: "AbstractIncomingMessage") -> None:
            if generation == self._generation:
                self._arrivals += 1
                self._unsettled += 1
            self._buffer.append(_Held(message, generation))
            self._ready.set()

        def cancelled(_: Any) -> None:
            if generation == self._generation:
                self._lost.set()

        await rabbitmq_queues.consume_from(channel, self._topic, arrived, cancelled)

    async def _watch(self) -> None:
        """Return when the channel is lost or what is buffered must go back to others.

        A server that was away for a while may know nothing of us without having said so: it is asked.
        One whose queue was deleted and made again at once may count us among its consumers and
        deliver nothing (seen with RabbitMQ 3.10), so that whoever hears nothing consumes anew.
        """
        since: float | None = None
        looked, heard = self._clock.monotonic(), self._arrivals
        while not self._lost.is_set() and not self._closed:
            try:
                async with asyncio.timeout(0.5):
                    await self._lost.wait()
            except TimeoutError:
                pass
            now = self._clock.monotonic()
            starved = bool(self._buffer) and self._credit() <= 0
            since = (since or now) if starved else None
            if since is not None and now - since >= self._settings.hold_seconds:
                return
            if now - looked >= self._settings.watch_seconds:
                if self._arrivals == heard and not self._unsettled:
                    return
                looked, heard = now, self._arrivals
                await self._check()

    async def _check(self) -> None:
        channel = self._channel
        assert channel is not None
        queue = await self._link.guarded(lambda: channel.declare_queue(self._topic, passive=True))
        if not queue.declaration_result.consumer_count:
            raise BrokerUnavailable(
                f"nobody consumes {self._topic} any more, not even we",
                where=self._topic,
                next_step="it is tried again by itself",
            )

    async def _until_credit(self) -> None:
        while self._credit() <= 0 and not self._closed:
            self.trouble = None
            self._ready.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self._ready.wait()
            except TimeoutError:
                pass

    def _on_close(self, *_: Any) -> None:  # Any: aio-pika passes the channel and its error
        self._lost.set()

    async def _shut(self) -> None:
        """Close the channel; the broker gives what is not acknowledged to others at once."""
        self._generation += 1
        self._unsettled = 0
        self._buffer.clear()
        channel, self._channel = self._channel, None
        if channel is None or channel.is_closed:
            return
        try:
            async with asyncio.timeout(2):
                await channel.close()
        except Exception as error:
            _log.debug("a channel did not close in time", topic=self._topic, error=error)
