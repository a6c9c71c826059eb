"""One SQLite file as a ledger: WAL, synchronous=FULL, group commit, readers beside the writer.

Statements run on the event loop, since handing each to a thread costs more than it takes. What
may wait for the disk or for another process (the write lock, COMMIT) goes to one helper thread,
except that COMMIT stays on the loop while flushes are seen to be quick.
"""

import os
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nerve.common import writelock
from nerve.common.sql.law import Row, Value
from nerve.common.sql.pump import pump
from nerve.common.sql.statement import Statement, sql
from nerve.protocol.errors import Damaged, DiskFull, LedgerUnavailable, NerveError

V = TypeVar("V")
T = TypeVar("T")

BUSY_SECONDS = 20.0

PAGE_BYTES = 2048
"""Half of SQLite's own: a turn touches many small tables, and each page that it touches is logged whole."""
LOG_BYTES = 4 * 1024 * 1024
"""The log is copied into the file and begun anew at this size: an overwritten log is flushed in half the
time of one that grows."""

_FULL = {sqlite3.SQLITE_FULL}
# A quota and a file size limit answer so, and a full disk where the -shm file should grow.
_FULL_EXTENDED = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_DEFECT = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_MISUSE}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

BEGIN = "BEGIN IMMEDIATE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"

READ_BATCH = sql("select batch from writer where id = :id")
WRITE_BATCH = sql(
    "insert into writer (id, batch) values (:id, :batch)"
    " on conflict (id) do update set batch = excluded.batch"
)


def connect(
    path: Path, *, read_only: bool = False, busy_seconds: float = 0.0
) -> sqlite3.Connection:
    """Open the file with the settings that the laws rely on.

    Raises:
        LedgerUnavailable: it cannot be opened.
        Damaged: it is not a database.
    """
    try:
        connection = sqlite3.connect(
            f"file:{_quoted(path)}?mode={'ro' if read_only else 'rw'}",
            uri=True,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=512,
        )
        connection.row_factory = sqlite3.Row
        if read_only:
            connection.execute("pragma query_only = on")
        else:
            log_ahead(connection)
            connection.execute("pragma synchronous = full")
        connection.execute("pragma foreign_keys = off")
        connection.execute(f"pragma cache_size = {-1000 if read_only else -4000}")
        return connection
    except sqlite3.Error as error:
        raise translated(error, path) from error


def log_ahead(connection: sqlite3.Connection) -> None:
    """A log before the file, in pages that are small in a new file and stay what they are in another."""
    connection.execute(f"pragma page_size = {PAGE_BYTES}")
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma wal_autocheckpoint = {LOG_BYTES // PAGE_BYTES}")


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def translated(error: sqlite3.Error, path: Path) -> NerveError:
    """The error of our tree that says what happened to the file at `path`."""
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code in _FULL or extended in _FULL_EXTENDED:
        return DiskFull(
            f"the disk that holds {path} is full",
            where=str(path),
            next_step="free space; nothing acknowledged is lost and admission starts again by itself",
        )
    if code in _DAMAGED:
        return Damaged(
            f"{path} is damaged or is not a ledger: {error}",
            where=str(path),
            next_step="restore it from a backup, or move it away to start with a new one",
        )
    if code in _DEFECT:
        return NerveError(
            f"the ledger {path} refused what a law wrote: {error}",
            where=str(path),
            next_step="nothing was written; report this: it is a defect of nerve",
        )
    if code in _BUSY:
        return LedgerUnavailable(
            f"the ledger {path} is locked: {writelock.described(path)}",
            where=str(path),
            next_step="it is tried again; `nerve doctor` names the holder, and a frozen host is ended"
            " after its lease",
        )
    return LedgerUnavailable(
        f"the ledger {path} did not answer: {error}",
        where=str(path),
        next_step="run `nerve doctor` to see what is wrong with it",
    )


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def file_identity(path: Path) -> tuple[int, int] | None:
    """(device, inode) of the file that stands at `path` now; None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class SqliteTx:
    """A `Tx` over an open transaction of one connection; its awaits never suspend."""

    __slots__ = ("_callbacks", "_connection")

    def __init__(self, connection: sqlite3.Connection, callbacks: list[Callable[[], None]]) -> None:
        self._connection = connection
        self._callbacks = callbacks

    async def run(self, statement: Statement, /, **parameters: Value) -> int:
        return self._connection.execute(statement.sqlite, statement.arguments(parameters)).rowcount

    async def one(self, statement: Statement, /, **parameters: Value) -> Row | None:
        # Read to the end: a RETURNING statement is complete only then.
        rows = self._connection.execute(
            statement.sqlite, statement.arguments(parameters)
        ).fetchall()
        return rows[0] if rows else None

    async def all(self, statement: Statement, /, **parameters: Value) -> Sequence[Row]:
        return self._connection.execute(
            statement.sqlite, statement.arguments(parameters)
        ).fetchall()

    async def many(self, statement: Statement, rows: Sequence[Mapping[str, Value]], /) -> None:
        self._connection.executemany(statement.sqlite, map(statement.arguments, rows))

    async def later(self, statement: Statement, /, **parameters: Value) -> None:
        self._connection.execute(statement.sqlite, statement.arguments(parameters))

    async def lock(self, statement: Statement, /, **parameters: Value) -> None:
        """Nothing to do: this transaction holds the one write lock of the file."""

    async def gather(self, works: Sequence[Coroutine[Any, Any, T]], /) -> list[T]:
        return [await work for work in works]

    def after(self, callback: Callable[[], None], /) -> None:
        self._callbacks.append(callback)


def _ignore(callback: Callable[[], None]) -> None:
    raise AssertionError(f"{callback!r}: a reader commits nothing, so nothing comes after it")


class ReadTx(SqliteTx):
    """A `Tx` of a read-only snapshot."""

    def after(self, callback: Callable[[], None], /) -> None:
        _ignore(callback)


class Reader:
    """Read-only snapshots on a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = connect(path, read_only=True, busy_seconds=BUSY_SECONDS)

    def read(self, query: Callable[[ReadTx], Awaitable[V]]) -> V:
        try:
            self._connection.execute("begin")
            try:
                return pump(query(ReadTx(self._connection, [])))
            finally:
                self._connection.execute("rollback")
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def close(self) -> None:
        self._connection.close()
