"""Hints between hosts over RabbitMQ, on a way of their own: a fanout exchange that keeps nothing.

Each process has an exclusive queue that goes with its connection. A hint is not confirmed and not kept on
disk; it is acknowledged after every listener of the process had it. Whatever fails here fails nothing
else: who waits also scans.
"""

import asyncio
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, final

from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.broker.rabbitmq_link import Link
from nerve.common.clock import Clock, SystemClock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.wakeups import Listener, LocalWakeups, Subscription, bundled, hints_enabled

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractIncomingMessage

_log = get_log("nerve.common.rabbitmq")

PAYLOAD_BYTES = 16_384
PAUSE_SECONDS = 0.005
PENDING_MAX = 10_000
QUEUED_MAX = 1_000
SENDER = "sender"


@final
class RabbitWakeups:
    """`Wakeups` for every host that named the same exchange. Without its connection only this process hears."""

    def __init__(
        self,
        settings: RabbitSettings,
        exchange: str,
        *,
        hints: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._link = Link(settings, "nerve hints", self._clock)
        self._name = exchange
        self._me = secrets.token_hex(8)
        self._hints = hints_enabled() if hints is None else hints
        self._here = LocalWakeups(hints=self._hints)
        self._pending: dict[str, None] = {}
        self._rung = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.connected = asyncio.Event()
        """Set while hints of others come in."""

    def open(self) -> None:
        """Connect soon, and again whenever the connection was lost. Waits for nothing."""
        if self._hints and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="hints")

    def ring(self, channel: str) -> None:
        if not self._hints or self._closed:
            return
        self._here.ring(channel)
        if len(self._pending) < PENDING_MAX:
            self._pending[channel] = None
        self._rung.set()

    def listen(self, channel: str, callback: Listener) -> Subscription:
        return self._here.listen(channel, callback)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        self.close()
        task, self._task = self._task, None
        # The driver may swallow a cancel while it connects.
        while task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=1)
        await self._link.close()

    async def _run(self) -> None:
        failures = 0
        pause = Backoff(first_seconds=0.1, most_seconds=5.0)
        while not self._closed:
            try:
                channel = await self._link.channel()
                exchange = await self._link.guarded(partial(self._join, channel))
                failures = 0
                self.connected.set()
                await self._serve(channel, exchange)
            except Exception as error:
                failures += 1
                _log.warning("hints have no way, scans go on", cause="hints", error=error)
            self.connected.clear()
            await self._clock.sleep(pause.after(failures))

    async def _join(self, channel: "AbstractChannel") -> "AbstractExchange":
        exchange = await channel.declare_exchange(
            self._name, "fanout", durable=False, auto_delete=True
        )
        queue = await channel.declare_queue(
            exclusive=True, auto_delete=True, arguments={"x-max-length": QUEUED_MAX}
        )
        await queue.bind(exchange)
        await channel.set_qos(prefetch_count=64)
        channel.close_callbacks.add(self._lost)
        await queue.consume(self._arrived)
        return exchange

    def _lost(self, *_: Any) -> None:  # Any: aio-pika passes the channel and its error
        self._rung.set()

    async def _arrived(self, message: "AbstractIncomingMessage") -> None:
        if message.headers.get(SENDER) != self._me:
            self._here.hear(message.body.decode(errors="replace").split("\n"))
            # Listeners are called in the same turn of the loop, before whoever waits here goes on.
            await asyncio.sleep(0)
        await message.ack()

    async def _serve(self, channel: "AbstractChannel", exchange: "AbstractExchange") -> None:
        """Send what is rung, many hints in one message, until the channel is lost."""
        from aio_pika import Message

        while not channel.is_closed:
            await self._rung.wait()
            self._rung.clear()
            pending, self._pending = self._pending, {}
            for payload in bundled(pending, PAYLOAD_BYTES):
                message = Message(payload, headers={SENDER: self._me})
                await exchange.publish(message, "", mandatory=False, timeout=5)
            await self._clock.sleep(PAUSE_SECONDS)
