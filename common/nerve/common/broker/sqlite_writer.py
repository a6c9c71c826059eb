"""Transactions on a queue file, one at a time in this process, on the file that stands when they end.

What was acknowledged or given back rides on the next transaction of any kind, or gets one of its own a
little later: losing it only repeats a delivery.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from nerve.common import faults
from nerve.common.broker.sqlite_file import (
    QueueFile,
    is_busy,
    is_damaged,
    translated,
    unflushed,
)
from nerve.common.clock import Clock
from nerve.common.lifecycle import Background
from nerve.common.logs import get_log
from nerve.common.writelock import described
from nerve.protocol.errors import BrokerUnavailable, NerveError

GENERATIONS_MAX = 5
_SPINS = 10

_FORGET = (
    "DELETE FROM message WHERE id = ?1 AND EXISTS"
    " (SELECT 1 FROM claim WHERE claim.message = ?1 AND claim.consumer = ?2)"
)
_RELEASE = "DELETE FROM claim WHERE message = ? AND consumer = ?"

faults.register(
    "common",
    [
        "common.broker.sqlite.before_publish_commit",
        "common.broker.sqlite.after_publish_commit",
        "common.broker.sqlite.before_claim_commit",
        "common.broker.sqlite.after_claim_commit",
        "common.broker.sqlite.before_ack_commit",
        "common.broker.sqlite.after_ack_commit",
        "common.broker.sqlite.before_release_commit",
        "common.broker.sqlite.after_release_commit",
    ],
)

_log = get_log("nerve.common.broker.sqlite")

Work = Callable[[sqlite3.Connection], None]
Seen = Callable[[], None]


@final
@dataclass(frozen=True, slots=True)
class Token:
    """A claim: a message number means nothing in another generation of the file."""

    generation: int
    message: int


@final
@dataclass(slots=True)
class _Settlement:
    """What consumers of this process are done with and the file does not know yet."""

    acked: set[int] = field(default_factory=set[int])
    returned: dict[int, str] = field(default_factory=dict[int, str])

    def __bool__(self) -> bool:
        return bool(self.acked or self.returned)


@final
class QueueWriter:
    """All writing of one process. `name` is what the transaction is for, as in the fault points."""

    def __init__(
        self,
        file: QueueFile,
        consumer: str,
        clock: Clock,
        *,
        lock_seconds: float,
        ack_seconds: float,
        quick_flush_seconds: float,
        returned: Callable[[Iterable[str]], None],
        observe: Callable[[int, float], object] | None = None,
    ) -> None:
        self.file = file
        self.consumer = consumer
        self.background = Background(clock=clock)
        self.held: dict[int, str] = {}
        self.renewed: list[Callable[[], None]] = []
        self.commits = 0
        self._clock = clock
        self._lock_seconds = lock_seconds
        self._ack_seconds = ack_seconds
        self._quick_flush_seconds = quick_flush_seconds
        self._returned = returned
        self._observe = observe
        self._one_at_a_time = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nerve-broker")
        self._flush_seconds = 0.0
        self._settlement = _Settlement()
        self._settling: asyncio.TimerHandle | None = None

    async def transact(self, name: str, work: Work, *, kept: Seen | None = None) -> None:
        """Begin, work, commit. `work` runs again where the file was wiped before the end.

        With `kept` what was written is flushed before the end, and `kept` is called as soon as
        others can see it.
        """
        began = self._clock.monotonic()
        for _ in range(GENERATIONS_MAX):
            async with self._one_at_a_time:
                await self._renew_unless_standing()
                generation = self.file.generation
                try:
                    steps = await self._attempt(name, work)
                except sqlite3.Error as error:
                    self._roll_back()
                    if self.file.stands() and not is_damaged(error):
                        raise translated(error, self.file.path) from error
                    await self._renew()
                    continue
                except BaseException:
                    self._roll_back()
                    raise
            if kept is not None:
                kept()
                await self._flush()
                self._count(self._clock.monotonic() - began)
            if generation == self.file.generation and self.file.stands():
                _reach("after", steps)
                return
        raise BrokerUnavailable(
            "the queue file was replaced again and again",
            where=str(self.file.path),
            next_step="Something removes it; find out what, nothing is lost meanwhile",
        )

    async def look(self, statement: str, parameters: tuple[object, ...]) -> bool:
        """Whether a query has a row in the file that stands now. Takes no lock."""
        if not self.file.stands():
            async with self._one_at_a_time:
                await self._renew_unless_standing()
        try:
            return self.file.connection.execute(statement, parameters).fetchone() is not None
        except sqlite3.Error as error:
            if is_damaged(error):
                return True
            raise translated(error, self.file.path) from error

    def let_go(self, token: object, *, done: bool) -> None:
        """A consumer is done with a claim, or gives it back. Stale and repeated ones mean nothing."""
        if not isinstance(token, Token) or token.generation != self.file.generation:
            return
        topic = self.held.pop(token.message, None)
        if topic is None:
            return
        if done:
            self._settlement.acked.add(token.message)
        else:
            self._settlement.returned[token.message] = topic
        if self._settling is None:
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(self._ack_seconds, self._settle_soon)

    async def settle(self) -> None:
        """Write what is waiting to be acknowledged or given back."""
        if self._settlement:
            await self.transact("ack", lambda connection: None)

    def unsettled(self) -> set[int]:
        return {*self.held, *self._settlement.acked, *self._settlement.returned}

    def held_up(self) -> NerveError:
        return BrokerUnavailable(
            f"the queues could not be written within {self._lock_seconds:g} s: "
            f"{described(self.file.path)}",
            where=str(self.file.path),
            next_step="It is tried again; end or thaw that process if this goes on",
        )

    async def close(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        await self.background.close()
        with suppress(NerveError):
            await self.settle()
        self._thread.shutdown(wait=True)
        self.file.close()

    def _settle_soon(self) -> None:
        self._settling = None
        with suppress(RuntimeError):
            self.background.once("broker acknowledgements", self.settle())

    async def _attempt(self, name: str, work: Work) -> set[str]:
        """One transaction; returns what it was for."""
        connection = self.file.connection
        await self._begin(connection)
        settlement = self._write_settlement(connection)
        work(connection)
        steps = {name, "ack"} if settlement else {name}
        _reach("before", steps)
        connection.execute("COMMIT")
        self._settled(settlement)
        return steps

    async def _begin(self, connection: sqlite3.Connection) -> None:
        """Take the write lock and never block the loop: others hold it for the time of a flush."""
        deadline = self._clock.monotonic() + self._lock_seconds
        tries = 0
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            if self._clock.monotonic() > deadline:
                raise self.held_up()
            tries += 1
            await self._clock.sleep(0 if tries < _SPINS else min(0.01, 0.0005 * (tries - _SPINS)))

    async def _flush(self) -> None:
        """Wait for the disk: on the loop while that is seen to be quick, else in the thread."""
        await asyncio.sleep(0)  # The bells ring first.
        began = self._clock.monotonic()
        try:
            if self._flush_seconds < self._quick_flush_seconds:
                self.file.flush()
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self.file.flush)
        except OSError as error:
            if self.file.stands():
                raise unflushed(error, self.file.path) from error
        self._flush_seconds += (self._clock.monotonic() - began - self._flush_seconds) / 8

    def _count(self, seconds: float) -> None:
        self.commits += 1
        if self._observe is not None:
            self._observe(1, seconds)

    def _write_settlement(self, connection: sqlite3.Connection) -> _Settlement:
        pending = self._settlement
        # A copy: more may be settled while the commit is being flushed.
        written = _Settlement(set(pending.acked), dict(pending.returned))
        if not written:
            return written
        done = [(message, self.consumer) for message in sorted(written.acked)]
        gone = done + [(message, self.consumer) for message in sorted(written.returned)]
        connection.executemany(_FORGET, done)
        connection.executemany(_RELEASE, gone)
        return written

    def _settled(self, written: _Settlement) -> None:
        if not written:
            return
        topics = set(written.returned.values())
        for message in written.acked:
            self._settlement.acked.discard(message)
        for message in list(written.returned):
            self._settlement.returned.pop(message, None)
        if topics:
            self._returned(topics)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error, NerveError):
            if self.file.connection.in_transaction:
                self.file.connection.execute("ROLLBACK")

    async def _renew_unless_standing(self) -> None:
        if not self.file.stands():
            await self._renew()

    async def _renew(self) -> None:
        _log.warning("queue file was removed, replaced or damaged", file=self.file.path.name)
        await self.file.open()
        self.held.clear()
        self._settlement = _Settlement()
        for callback in self.renewed:
            callback()


def _reach(moment: str, steps: Iterable[str]) -> None:
    for step in steps:
        faults.point(f"common.broker.sqlite.{moment}_{step}_commit")
