"""Look at a ledger file without opening it as a host: what it is, what waits in it, who owns work in it.

Nothing is migrated, made or changed here, except that `raise_epoch` marks an adopted file as a new life.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nerve.common.sql import sqlite
from nerve.common.sql.seats import notes
from nerve.protocol.errors import Damaged

_META = "select key, value from meta"
_OUTBOX = "select count(*), min(created_at) from outbox"
_INBOX = "select state, count(*), min(received_at) from inbox group by state"
_REFUSED = "select count(*) from refused"
_HOSTS = (
    "select h.*, coalesce(b.counter, 0) as counter from host h left join heartbeat b on b.host = h.id"
    " where h.state <> 'RELEASED' order by h.registered_at"
)
_RAISE = "update meta set value = cast(cast(value as integer) + 1 as text) where key = 'epoch'"
_SINCE = (
    "insert into meta (key, value) values ('epoch_at', ?)"
    " on conflict (key) do update set value = excluded.value"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A host that is not released, as it registered itself; `counter` is its heartbeat."""

    id: str
    role: str
    state: str
    pid: int
    process_started: str
    boot: str
    offers: str
    registered_at: int
    counter: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One ledger at one moment. Times are milliseconds since the epoch, None where nothing waits."""

    path: Path
    room: str
    id: str
    epoch: int
    version: int
    oldest_writer: int
    created_at: int
    size_bytes: int
    outbox: int
    outbox_oldest_at: int | None
    held: int
    quarantined: int
    inbox_oldest_at: int | None
    refused: int
    hosts: Sequence[HostRow]
    notes: Sequence[str] = ()
    """What a person should know of its cell."""


def survey(path: Path) -> Survey:
    """Read what `doctor` and metrics show; blocking.

    Raises:
        LedgerUnavailable, Damaged: what the file answered, or that it does not say what it is.
    """
    connection = sqlite.connect(path, read_only=True, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        connection.execute("begin")
        return _read(connection, path)
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    except (KeyError, ValueError, IndexError) as error:
        raise Damaged(
            f"the ledger {path} does not say what it is: {error}",
            where=str(path),
            next_step="restore it from a backup, or move it away to start with a new one",
        ) from error
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, path: Path) -> Survey:
    meta = {row[0]: row[1] for row in connection.execute(_META)}
    outbox, outbox_oldest = connection.execute(_OUTBOX).fetchone()
    inbox = {row[0]: (row[1], row[2]) for row in connection.execute(_INBOX)}
    oldest = [at for _, at in inbox.values() if at is not None]
    return Survey(
        path=path,
        room=meta["room"],
        id=meta["id"],
        epoch=int(meta["epoch"]),
        version=int(meta["version"]),
        oldest_writer=int(meta["oldest_writer"]),
        created_at=int(meta["created_at"]),
        size_bytes=path.stat().st_size,
        outbox=outbox,
        outbox_oldest_at=outbox_oldest,
        held=inbox.get("HELD", (0, None))[0],
        quarantined=inbox.get("QUARANTINED", (0, None))[0],
        inbox_oldest_at=min(oldest) if oldest else None,
        refused=connection.execute(_REFUSED).fetchone()[0],
        notes=notes(meta),
        hosts=[_host(row) for row in connection.execute(_HOSTS)],
    )


def _host(row: sqlite3.Row) -> HostRow:
    return HostRow(
        id=row["id"],
        role=row["role"],
        state=row["state"],
        pid=row["pid"],
        process_started=row["process_started"],
        boot=row["boot"],
        offers=row["offers"],
        registered_at=row["registered_at"],
        counter=row["counter"],
    )


def raise_epoch(path: Path, *, now: int) -> None:
    """A file that was moved, copied, restored or made again is another life of its ledger from `now`
    on: of what was sent before, it may have forgotten something."""
    connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        connection.execute(sqlite.BEGIN)
        connection.execute(_RAISE)
        connection.execute(_SINCE, (str(now),))
        connection.execute(sqlite.COMMIT)
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    finally:
        connection.close()
