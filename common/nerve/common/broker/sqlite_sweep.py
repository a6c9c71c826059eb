"""Claims that nobody will ever settle are released: those of dead processes, and our own lost ones."""

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from nerve.common.broker.consumer_lock import dead_consumers, is_known
from nerve.common.broker.sqlite_writer import QueueWriter

_CONSUMERS = "SELECT DISTINCT consumer FROM claim"
_HELD = "SELECT message FROM claim WHERE consumer = ?"
_TOPICS = "SELECT DISTINCT topic FROM message"
_RELEASE = "DELETE FROM claim WHERE message = ? AND consumer = ?"
_RELEASE_ALL = "DELETE FROM claim WHERE consumer = ?"

# A dead process is looked for at each sweep; what an error left behind in this one can wait.
_LOST_SWEEPS = 4


@final
class SqliteSweep:
    name = "broker sweep"

    def __init__(
        self,
        writer: QueueWriter,
        locks: Path,
        *,
        interval_seconds: float,
        released: Callable[[Iterable[str]], None],
    ) -> None:
        self.interval_seconds = interval_seconds
        self._writer = writer
        self._locks = locks
        self._released = released
        self._first = True
        self._sweeps = 0

    async def run_once(self) -> bool:
        dead = list(dead_consumers(self._locks, besides=self._writer.consumer))
        done = False
        try:
            gone = [consumer.consumer for consumer in dead]
            if self._first:
                gone += self._strangers()
            lost = self._lost()
            if gone or lost:
                await self._release(gone, lost)
            self._first = False
            done = True
        finally:
            for consumer in dead:
                consumer.close(released=done)
        return False

    async def _release(self, consumers: list[str], lost: list[int]) -> None:
        topics: list[str] = []

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_RELEASE_ALL, [(consumer,) for consumer in consumers])
            own = self._writer.consumer
            connection.executemany(_RELEASE, [(message, own) for message in lost])
            topics[:] = [topic for (topic,) in connection.execute(_TOPICS)]

        await self._writer.transact("release", work)
        self._released(topics)

    def _strangers(self) -> list[str]:
        """Consumers of which no lock file tells: a folder of locks that was wiped, or a copied file."""
        rows = self._writer.file.connection.execute(_CONSUMERS).fetchall()
        others = [consumer for (consumer,) in rows if consumer != self._writer.consumer]
        return [consumer for consumer in others if not is_known(self._locks, consumer)]

    def _lost(self) -> list[int]:
        """Claims of ours that no consumer of this process knows, because an error came in between."""
        self._sweeps += 1
        if self._sweeps % _LOST_SWEEPS != 1:
            return []
        own = (self._writer.consumer,)
        held = self._writer.file.connection.execute(_HELD, own).fetchall()
        known = self._writer.unsettled()
        return [message for (message,) in held if message not in known]
