"""The file that holds the queues: layout, opening, and what happens where it was wiped or replaced.

Everything in it can be sent again by those who wrote it. So a file that is damaged or that stands no
longer under its name is not mourned: a new one is made, once, by whoever holds the lock of the folder.
"""

import os
import sqlite3
from contextlib import closing, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Self, final

from nerve.common.clock import Clock
from nerve.common.logs import get_log
from nerve.common.sql.sqlite import log_ahead
from nerve.protocol.errors import BrokerUnavailable, DiskFull, NerveError, SchemaTooNew

VERSION = 1
OPEN_SECONDS = 5.0

_LAYOUT = (
    """CREATE TABLE message (
        id INTEGER PRIMARY KEY,
        topic TEXT NOT NULL,
        published_at INTEGER NOT NULL,
        envelopes INTEGER NOT NULL CHECK (envelopes > 0),
        body BLOB NOT NULL
    )""",
    "CREATE INDEX message_topic ON message (topic, id)",
    """CREATE TABLE claim (
        message INTEGER PRIMARY KEY,
        consumer TEXT NOT NULL,
        claimed_at INTEGER NOT NULL
    )""",
    f"PRAGMA user_version = {VERSION}",
)

_log = get_log("nerve.common.broker.sqlite")

_sync = getattr(os, "fdatasync", os.fsync)

Identity = tuple[tuple[int, int] | None, ...]


@final
class QueueFile:
    """A connection to one generation of `broker.db`: a new file is a new generation.

    Its commits are seen by others at once and are not flushed, since losing a claim or an
    acknowledgement only repeats a delivery; `flush` is for what must be kept.
    """

    def __init__(self, directory: Path, clock: Clock, *, bytes_max: int | None = None) -> None:
        self.path = directory / "broker.db"
        self._all = tuple(os.fspath(name) for name in self._names())
        self._lock_path = directory / "locks" / "broker.lock"
        self._clock = clock
        self._bytes_max = bytes_max
        self._identity: Identity = ()
        self._open: sqlite3.Connection | None = None
        self._log = -1
        self.generation = 0

    @property
    def connection(self) -> sqlite3.Connection:
        if self._open is None:
            raise BrokerUnavailable(
                "the queue file is closed", where=str(self.path), next_step="Open the broker first"
            )
        return self._open

    def flush(self) -> None:
        """Wait until all that was committed is on the disk."""
        _sync(self._log)

    async def open(self) -> None:
        """Open what stands there, or make it; where we had it open before, that generation is over."""
        self._lock_path.parent.mkdir(mode=0o700, exist_ok=True)
        with closing(await _FolderLock.taken(self._lock_path, self._clock)):
            self._retire_if_torn()
            self.close()
            try:
                self._connect()
            except sqlite3.DatabaseError as error:
                self.close()
                if not is_damaged(error):
                    raise translated(error, self.path) from error
                self._set_aside(error)
                self._connect()
            self.generation += 1

    def close(self) -> None:
        connection, self._open = self._open, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()
        descriptor, self._log = self._log, -1
        if descriptor >= 0:
            os.close(descriptor)

    def stands(self) -> bool:
        """Whether the files under our names are still those that we hold open."""
        return self._open is not None and self._identity == self._look()

    def _names(self) -> tuple[Path, Path, Path]:
        return (
            self.path,
            self.path.with_name(f"{self.path.name}-wal"),
            self.path.with_name(f"{self.path.name}-shm"),
        )

    def _look(self) -> Identity:
        return tuple(map(_identity, self._all))

    def _retire_if_torn(self) -> None:
        """A file without its own log is no database: nobody may go on with half of it.

        That is a main file of ours with a strange log, or a log left behind by a lost main file.
        """
        main, *rest = self._look()
        ours = self._identity[:1] == (main,) and self._identity != (main, *rest)
        if main is None or (self._open is not None and ours):
            self._unlink()

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{self._clock.now_ms()}")
        with suppress(FileNotFoundError):
            self.path.rename(aside)
        self._unlink()
        _log.warning("queue file was damaged and is made anew", aside=aside.name, error=str(error))

    def _unlink(self) -> None:
        for name in self._names():
            with suppress(FileNotFoundError):
                name.unlink()

    def _connect(self) -> None:
        self._open = connection = self._configured()
        connection.execute("SELECT count(*) FROM claim").fetchone()
        connection.execute("PRAGMA busy_timeout = 0")
        self._log = os.open(self._names()[1], os.O_RDWR | os.O_CLOEXEC)
        self._identity = self._look()

    def _configured(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=OPEN_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            log_ahead(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            self._lay_out(connection)
            if self._bytes_max is not None:
                page = int(connection.execute("PRAGMA page_size").fetchone()[0])
                connection.execute(f"PRAGMA max_page_count = {max(16, self._bytes_max // page)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _lay_out(self, connection: sqlite3.Connection) -> None:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise SchemaTooNew(
                f"the queue file has layout {version}, this build knows {VERSION}",
                where=str(self.path),
                next_step="Run the newer build, or stop every host and remove the file: "
                "what it holds is sent again",
            )
        if version == 0:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _LAYOUT:
                connection.execute(statement)
            connection.execute("COMMIT")


@final
class _FolderLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    async def taken(cls, path: Path, clock: Clock) -> Self:
        deadline = clock.monotonic() + OPEN_SECONDS
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not try_flock(descriptor):
                if clock.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"another process has held the queue folder for {OPEN_SECONDS:g} s",
                        where=str(path),
                        next_step="`nerve doctor` names it; it may be frozen",
                    )
                await clock.sleep(0.005)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def try_flock(descriptor: int) -> bool:
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_busy(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_damaged(error: sqlite3.Error) -> bool:
    return _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def translated(error: sqlite3.Error, path: Path) -> NerveError:
    if _code(error) == sqlite3.SQLITE_FULL:
        return DiskFull(
            "the disk that holds the queues is full",
            where=str(path),
            next_step="Free space; nothing is lost and sending starts again by itself",
        )
    return BrokerUnavailable(
        f"the queue file did not answer: {error}",
        where=str(path),
        next_step="It is tried again; `nerve doctor` shows who holds it",
    )


def unflushed(error: OSError, path: Path) -> NerveError:
    return BrokerUnavailable(
        f"what was written to the queue file could not be flushed: {error}",
        where=str(path),
        next_step="It is sent again; look at the disk if this goes on",
    )


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
