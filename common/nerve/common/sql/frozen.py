"""A process frozen inside a write transaction holds the file, and nobody can take over from it.

Whoever cannot write watches the holder of the write lock. Where it is the same process all the
time and nothing is committed for its whole lease, it will not give the lock back by itself: then
exactly that process is ended, if the ledger knows it as one of its hosts. It has been taken for
dead by everybody else by then, and its open transaction dies with it.
"""

import os
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from nerve.common import process, writelock
from nerve.common.clock import Clock, SystemClock
from nerve.common.logs import get_log
from nerve.common.sql.statement import sql

_log = get_log("nerve.common.sql.frozen")

# Of the time between two looks, no more counts: who was frozen meanwhile has seen nothing of it.
STEP_SECONDS_MAX = 3.0

REGISTERED = sql(
    "select lease_ms, boot from host where pid = :pid and process_started = :started"
    " and state <> 'RELEASED'"
)


@dataclass(slots=True)
class _Held:
    mark: process.ProcessMark
    version: int
    looked: float
    seconds: float = 0.0


class FrozenWriter:
    """The watch of one process over the write lock of one SQLite file."""

    def __init__(self, database: Path, *, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._held: _Held | None = None

    def free(self) -> None:
        """The lock was to be had."""
        self._held = None

    def look(self, connection: sqlite3.Connection) -> bool:
        """Call after the lock was waited for in vain; True where its holder was ended."""
        pid = writelock.holder(self._database)
        started = None if pid is None or pid == os.getpid() else process.started(pid)
        if pid is None or started is None:
            self._held = None
            return False
        mark = process.ProcessMark(pid=pid, started=started, place=process.place())
        version = int(connection.execute("pragma data_version").fetchone()[0])
        now = self._clock.monotonic()
        held = self._held
        if held is None or (held.mark, held.version) != (mark, version):
            self._held = _Held(mark, version, now)
            return False
        held.seconds += min(now - held.looked, STEP_SECONDS_MAX)
        held.looked = now
        return self._end(connection, held)

    def _end(self, connection: sqlite3.Connection, held: _Held) -> bool:
        mark = held.mark
        row = connection.execute(
            REGISTERED.sqlite, REGISTERED.arguments({"pid": mark.pid, "started": mark.started})
        ).fetchone()
        if row is None or row["boot"] != mark.place:
            _log.warning(
                "the write lock is held by a process that is no host of this ledger",
                cause="frozen_writer",
                holder=writelock.described(self._database),
            )
            return False
        if held.seconds * 1000 < row["lease_ms"]:
            return False
        try:
            ended = _kill(mark)
        except OSError as error:
            _log.error(
                "the process that holds the write lock may not be ended by this one",
                cause="frozen_writer",
                holder=writelock.described(self._database),
                error=error,
            )
            return False
        if ended:
            _log.error(
                "ended a host that was frozen inside a write transaction beyond its lease",
                pid=mark.pid,
                seconds=round(held.seconds, 1),
            )
        self._held = None
        return ended


def _kill(mark: process.ProcessMark) -> bool:
    """SIGKILL to exactly the marked process: its number may belong to another one by now."""
    descriptor = os.pidfd_open(mark.pid)
    try:
        if not process.is_same(mark):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    finally:
        os.close(descriptor)
