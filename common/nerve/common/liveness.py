"""How hosts of one ledger see each other: a lock that dies with its host, and a heartbeat that beats.

A `Liveness` belongs to a kind of ledger. Nothing here decides anything: what a lock or a heartbeat
means is the law of `lease`.
"""

import fcntl
import os
import sqlite3
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol, final

from nerve.common import faults, writelock
from nerve.common.sql import sqlite
from nerve.common.sql.frozen import FrozenWriter
from nerve.common.sql.statement import sql

BEAT = sql(
    "update heartbeat set counter = counter + 1 where host = :id"
    " and exists (select 1 from host where id = :id and state <> 'RELEASED')"
)

faults.register(
    "common",
    ["common.lease.locked", "common.lease.before_unlock", "common.lease.after_unlock"],
)


class LockSight(StrEnum):
    """What an observer sees of a host's lock. UNSEEN: it cannot tell, and only the lease counts."""

    HELD = "HELD"
    FREE = "FREE"
    UNSEEN = "UNSEEN"


class Lifeline(Protocol):
    """The lock of one incarnation, held from before its row can be seen until `drop`."""

    def beat(self) -> bool:
        """Advance the heartbeat; False where the incarnation was released.

        Called from a thread of its own, since a tool may block the event loop. Raises where the
        ledger cannot be reached: then nothing is known.
        """
        ...

    def hang_up(self) -> None:
        """Called by that thread when it ends."""
        ...

    async def drop(self) -> None: ...


class Liveness(Protocol):
    """Takes locks, and looks at those of others."""

    async def take(self, host: str) -> Lifeline: ...

    async def look(self, hosts: Sequence[str]) -> Mapping[str, LockSight]: ...

    def forget(self, host: str) -> None:
        """Remove what a released host left behind."""
        ...

    def writer(self) -> int | None:
        """The pid that keeps every other from writing at this moment; None where nobody can tell."""
        ...


@final
class FileLifeline:
    """flock on a file, which the kernel drops with the process; beats on a connection of its own."""

    def __init__(self, lock: Path, host: str, ledger: Path) -> None:
        self._lock = lock
        self._host = host
        self._ledger = ledger
        self._frozen = FrozenWriter(ledger)
        self._connection: sqlite3.Connection | None = None
        self._descriptor: int | None = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        faults.point("common.lease.locked")

    def beat(self) -> bool:
        if self._connection is None:
            self._connection = sqlite.connect(self._ledger, busy_seconds=1.0)
        try:
            beaten = self._write(self._connection)
        except sqlite3.Error as error:
            # Only whoever waits for the lock can know that it never comes.
            if not sqlite.is_busy(error) or not self._frozen.look(self._connection):
                raise sqlite.translated(error, self._ledger) from error
            beaten = self._write(self._connection)
        self._frozen.free()
        return beaten

    def _write(self, connection: sqlite3.Connection) -> bool:
        return connection.execute(BEAT.sqlite, BEAT.arguments({"id": self._host})).rowcount == 1

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def drop(self) -> None:
        faults.point("common.lease.before_unlock")
        if self._descriptor is not None:
            self._lock.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
        faults.point("common.lease.after_unlock")


@final
class FileLiveness:
    """The hosts of one SQLite ledger on one machine."""

    def __init__(self, locks: Path, ledger: Path) -> None:
        self._locks = locks
        self._ledger = ledger

    async def take(self, host: str) -> FileLifeline:
        return FileLifeline(self._path(host), host, self._ledger)

    async def look(self, hosts: Sequence[str]) -> Mapping[str, LockSight]:
        return {host: lock_sight(self._path(host)) for host in hosts}

    def forget(self, host: str) -> None:
        self._path(host).unlink(missing_ok=True)

    def writer(self) -> int | None:
        return writelock.holder(self._ledger)

    def _path(self, host: str) -> Path:
        return self._locks / f"{host}.lock"


def lock_sight(lock: Path) -> LockSight:
    """Whether somebody holds the lock file; taking it for a moment is the only way to know.

    It is taken shared, so that two observers do not take each other for the host.
    """
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return LockSight.UNSEEN
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return LockSight.FREE
    except BlockingIOError:
        return LockSight.HELD
    except OSError:
        return LockSight.UNSEEN
    finally:
        os.close(descriptor)
