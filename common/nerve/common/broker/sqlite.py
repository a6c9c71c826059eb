"""The broker of one machine without a server: queues in one SQLite file, doorbells between processes.

A publish is seen by consumers at its commit and confirmed after the flush of it; those that queue up
meanwhile share the next one.
Claims and acknowledgements are not flushed, since losing them only repeats a delivery. A claim belongs to
a process and ends with the lock that the process holds. The doorbell is a hint; an idle consumer looks by
itself once a second. A file that was wiped is made anew, and what was not confirmed is written again.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nerve.common import faults
from nerve.common.broker.consumer_lock import ConsumerLock
from nerve.common.broker.port import Credit, check_bodies, envelopes_in
from nerve.common.broker.sqlite_consumer import SqliteConsumer, channel_of
from nerve.common.broker.sqlite_file import QueueFile
from nerve.common.broker.sqlite_sweep import SqliteSweep
from nerve.common.broker.sqlite_writer import QueueWriter
from nerve.common.clock import Clock, SystemClock
from nerve.common.lifecycle import Loop
from nerve.common.wakeups import Wakeups
from nerve.protocol.errors import BrokerUnavailable

BATCH_BYTES_MAX = 4 * 1024 * 1024
BATCH_BODIES_MAX = 512

_INSERT = "INSERT INTO message (topic, published_at, envelopes, body) VALUES (?, ?, ?, ?)"
_DEPTHS = (
    "SELECT topic, sum(envelopes), count(*), count(claim.message), min(published_at)"
    " FROM message LEFT JOIN claim ON claim.message = message.id GROUP BY topic ORDER BY topic"
)

faults.register(
    "common", ["common.broker.sqlite.before_publish", "common.broker.sqlite.before_confirm"]
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What one topic holds, for `doctor` and metrics."""

    topic: str
    envelopes: int
    bodies: int
    claimed: int
    oldest_ms: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Publish:
    topic: str
    bodies: Sequence[bytes]
    confirmed: asyncio.Future[None]


@final
class SqliteBroker:
    def __init__(
        self,
        directory: Path | str,
        wakeups: Wakeups,
        *,
        clock: Clock | None = None,
        publish_seconds: float = 10.0,
        poll_seconds: float = 1.0,
        ack_seconds: float = 0.02,
        sweep_seconds: float = 1.0,
        quick_flush_seconds: float = 0.0006,
        bytes_max: int | None = None,
        observe: Callable[[int, float], object] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._wakeups = wakeups
        self._clock = clock or SystemClock()
        self._publish_seconds = publish_seconds
        self._poll_seconds = poll_seconds
        self._ack_seconds = ack_seconds
        self._sweep_seconds = sweep_seconds
        self._quick_flush_seconds = quick_flush_seconds
        self._bytes_max = bytes_max
        self._observe = observe
        self._queue: deque[_Publish] = deque()
        self._publishing: asyncio.Task[None] | None = None
        self._consumers: list[SqliteConsumer] = []
        self._open: tuple[QueueWriter, ConsumerLock, Loop] | None = None

    async def open(self) -> None:
        file = QueueFile(self._directory, self._clock, bytes_max=self._bytes_max)
        await file.open()
        locks = self._directory / "locks"
        lock = ConsumerLock(locks)
        writer = QueueWriter(
            file,
            lock.consumer,
            self._clock,
            lock_seconds=self._publish_seconds,
            ack_seconds=self._ack_seconds,
            quick_flush_seconds=self._quick_flush_seconds,
            returned=self._ring,
            observe=self._observe,
        )
        sweep = SqliteSweep(
            writer, locks, interval_seconds=self._sweep_seconds, released=self._ring
        )
        loop = Loop(sweep, clock=self._clock)
        self._open = (writer, lock, loop)
        await loop.start()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        check_bodies(topic, bodies)
        writer = self._writer()
        if not bodies:
            return
        await faults.apoint("common.broker.sqlite.before_publish")
        entry = _Publish(topic, bodies, asyncio.get_running_loop().create_future())
        self._queue.append(entry)
        if self._publishing is None:
            work = self._publish_queued(writer)
            self._publishing = writer.background.once("broker publish", work)
        timer = self._clock.call_later(self._publish_seconds, lambda: _give_up(entry, writer))
        try:
            await entry.confirmed
        finally:
            timer.cancel()
        await faults.apoint("common.broker.sqlite.before_confirm")

    def consume(self, topic: str, group: str, *, credit: Credit) -> SqliteConsumer:
        consumer = SqliteConsumer(
            self._writer(),
            topic,
            credit,
            self._wakeups,
            self._clock,
            poll_seconds=self._poll_seconds,
            closed=self._consumers.remove,
        )
        self._consumers.append(consumer)
        return consumer

    async def close(self) -> None:
        if self._open is None:
            return
        (writer, lock, sweep), self._open = self._open, None
        if self._publishing is not None:
            await asyncio.wait([self._publishing], timeout=self._publish_seconds)
        for consumer in self._consumers[:]:
            with suppress(BrokerUnavailable):
                await consumer.close()
        await sweep.close()
        await writer.close()
        lock.close()

    def depths(self) -> list[Depth]:
        """What every topic holds now."""
        rows = self._writer().file.connection.execute(_DEPTHS).fetchall()
        return [
            Depth(
                topic=topic, envelopes=envelopes, bodies=bodies, claimed=claimed, oldest_ms=oldest
            )
            for topic, envelopes, bodies, claimed, oldest in rows
        ]

    async def waiting(self, topics: Sequence[str]) -> Mapping[str, int]:
        found = {depth.topic: depth for depth in self.depths()}
        return {
            name: found[name].bodies - found[name].claimed if name in found else 0
            for name in topics
        }

    def _writer(self) -> QueueWriter:
        if self._open is None:
            raise BrokerUnavailable(
                "the broker is closed",
                where=str(self._directory),
                next_step="The message stays in the outbox and is sent when the host runs again",
            )
        return self._open[0]

    async def _publish_queued(self, writer: QueueWriter) -> None:
        try:
            while batch := self._next_batch():
                await self._confirm(writer, batch)
        finally:
            self._publishing = None

    def _next_batch(self) -> list[_Publish]:
        """Those that still wait: whoever gave up will publish again, and need not be doubled."""
        batch: list[_Publish] = []
        size = bodies = 0
        while self._queue and size < BATCH_BYTES_MAX and bodies < BATCH_BODIES_MAX:
            entry = self._queue.popleft()
            if not entry.confirmed.done():
                batch.append(entry)
                size += sum(map(len, entry.bodies))
                bodies += len(entry.bodies)
        return batch

    async def _confirm(self, writer: QueueWriter, batch: Sequence[_Publish]) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            now_ms = self._clock.now_ms()
            for entry in batch:
                rows = [(entry.topic, now_ms, envelopes_in(body), body) for body in entry.bodies]
                connection.executemany(_INSERT, rows)

        def ring() -> None:
            self._ring(dict.fromkeys(entry.topic for entry in batch))

        problem: Exception | None = None
        try:
            await writer.transact("publish", insert, kept=ring)
        except Exception as error:
            problem = error
            # Nobody knows whether the commit happened; a needless ring does no harm.
            ring()
        for entry in batch:
            _resolve(entry.confirmed, problem)

    def _ring(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._wakeups.ring(channel_of(topic))


def _give_up(entry: _Publish, writer: QueueWriter) -> None:
    _resolve(entry.confirmed, writer.held_up())


def _resolve(future: asyncio.Future[None], problem: Exception | None) -> None:
    if future.done():
        return
    if problem is None:
        future.set_result(None)
    else:
        future.set_exception(problem)
