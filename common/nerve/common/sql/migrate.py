"""Bring a ledger file to the schema of this build, or refuse it by name.

A new file is made from the tables; an older one goes through the numbered Alembic scripts, in one
transaction; a newer one is used only where it says that writers as old as this build still suit it.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nerve.common.sql import sqlite
from nerve.common.sql.ledger import LedgerIdentity
from nerve.protocol.errors import Damaged, SchemaTooNew, WrongLedger
from nerve.protocol.identity import new_uuid7

if TYPE_CHECKING:
    import sqlalchemy as sa
    from alembic.script import ScriptDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What one room keeps. `version` numbers the migrations; `oldest_writer` is the oldest build
    that may still write a ledger of this version."""

    room: str
    version: int
    oldest_writer: int
    metadata: "Callable[[], sa.MetaData]"
    migrations: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a ledger says of itself."""

    room: str
    id: str
    epoch: int
    version: int
    oldest_writer: int
    created_at: int
    epoch_at: int = 0

    @classmethod
    def of(cls, values: Mapping[str, str]) -> "Meta":
        """From the rows of the table `meta`. Raises KeyError, ValueError."""
        return cls(
            room=values["room"],
            id=values["id"],
            epoch=int(values["epoch"]),
            version=int(values["version"]),
            oldest_writer=int(values["oldest_writer"]),
            created_at=int(values["created_at"]),
            epoch_at=int(values.get("epoch_at", 0)),
        )

    def rows(self) -> list[tuple[str, str]]:
        """(key, value) as a new table `meta` holds them."""
        keys = ("room", "id", "epoch", "version", "oldest_writer", "created_at")
        return [(key, str(getattr(self, key))) for key in keys]

    @property
    def identity(self) -> LedgerIdentity:
        return LedgerIdentity(
            id=self.id, epoch=self.epoch, created_at=self.created_at, epoch_at=self.epoch_at
        )


def prepare(path: Path, schema: Schema, *, create: bool, now: int) -> LedgerIdentity:
    """Check or make the ledger at `path`; blocking.

    Raises:
        WrongLedger: it is missing, or holds another room's tables.
        SchemaTooNew: a newer build made it and says that this one may not write it.
        Damaged, DiskFull, LedgerUnavailable: what the file itself answered.
    """
    if not path.exists() and not create:
        raise WrongLedger(
            f"there is no ledger at {path}",
            where=str(path),
            next_step="start a host there first, or name the right directory with --dir",
        )
    meta = _read(path) if path.exists() else None
    if meta is None:
        meta = _create(path, schema, now) if create else _refuse_empty(path)
    check_meta(str(path), meta, schema)
    if meta.version < schema.version:
        _upgrade(path, schema)
    return meta.identity


def look(path: Path) -> Meta | None:
    """What the file says of itself; None: no ledger yet. Raises Damaged, LedgerUnavailable."""
    return _read(path) if path.exists() else None


def _refuse_empty(path: Path) -> Meta:
    raise WrongLedger(
        f"{path} holds no ledger",
        where=str(path),
        next_step="start a host there first, or name the right directory with --dir",
    )


def _read(path: Path) -> Meta | None:
    connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        found = connection.execute(
            "select 1 from sqlite_master where type = 'table' and name = 'meta'"
        ).fetchone()
        if found is None:
            return None
        values = {row[0]: row[1] for row in connection.execute("select key, value from meta")}
        return Meta.of(values)
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    except (KeyError, ValueError) as error:
        raise Damaged(
            f"the ledger {path} does not say what it is: {error}",
            where="meta",
            next_step="restore it from a backup, or move it away to start with a new one",
        ) from error
    finally:
        connection.close()


def check_meta(what: str, meta: Meta, schema: Schema) -> None:
    """Raises WrongLedger for another room's ledger, SchemaTooNew for one that admits us no more."""
    if meta.room != schema.room:
        raise WrongLedger(
            f"{what} is a ledger of {meta.room}, not of {schema.room}",
            where="meta.room",
            next_step=f"name the place of a {schema.room} ledger",
        )
    if meta.oldest_writer > schema.version:
        raise SchemaTooNew(
            f"{what} has schema {meta.version}; this build writes {schema.version} and the ledger"
            f" admits none older than {meta.oldest_writer}",
            where="meta.version",
            next_step="install the newer nerve on this host",
        )


def _create(path: Path, schema: Schema, now: int) -> Meta:
    meta = Meta(
        room=schema.room,
        id=new_uuid7(now),
        epoch=1,
        version=schema.version,
        oldest_writer=schema.oldest_writer,
        created_at=now,
    )
    path.touch(mode=0o600, exist_ok=True)
    connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        connection.execute(sqlite.BEGIN)
        # Two hosts may start on an empty directory at once: the second finds the first one's tables.
        if connection.execute("select 1 from sqlite_master limit 1").fetchone() is None:
            for statement in ddl(schema):
                connection.execute(statement)
            _stamp(connection, schema)
            connection.executemany(
                "insert into meta (key, value) values (?, ?)",
                [*meta.rows(), ("position", "0")],
            )
        connection.execute(sqlite.COMMIT)
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    finally:
        connection.close()
    return _read(path) or meta


def ddl(schema: Schema) -> list[str]:
    """CREATE statements of a fresh ledger, in order."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import sqlite as dialect
    from sqlalchemy.schema import CreateIndex, CreateTable

    statements: list[str] = []
    compiled = dialect.dialect()
    for table in schema.metadata().sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=compiled)))
        indexes: list[sa.Index] = sorted(table.indexes, key=lambda index: str(index.name))
        statements += [str(CreateIndex(index).compile(dialect=compiled)) for index in indexes]
    return statements


def _stamp(connection: sqlite3.Connection, schema: Schema) -> None:
    connection.execute(
        "create table alembic_version (version_num varchar(32) not null primary key)"
    )
    connection.execute(
        "insert into alembic_version (version_num) values (?)", (f"{schema.version:04d}",)
    )


def _upgrade(path: Path, schema: Schema) -> None:
    connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
    try:
        connection.execute(sqlite.BEGIN)
        run_migrations(connection, schema)
        connection.execute(
            "update meta set value = ? where key = 'version'", (str(schema.version),)
        )
        connection.execute(
            "update meta set value = ? where key = 'oldest_writer'", (str(schema.oldest_writer),)
        )
        connection.execute(sqlite.COMMIT)
    except sqlite3.Error as error:
        raise sqlite.translated(error, path) from error
    finally:
        connection.close()


class _Borrowed:
    """The caller's connection, whose transaction only the caller ends: SQLAlchemy rolls back where
    it first connects, and would leave each statement of a script committed on its own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:  # Any: whatever a connection has under that name
        return getattr(self._connection, name)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def scripts(schema: Schema) -> "ScriptDirectory":
    """The Alembic scripts of a room."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(schema.migrations))
    config.set_main_option("path_separator", "os")
    return ScriptDirectory.from_config(config)


def run_migrations(connection: sqlite3.Connection, schema: Schema) -> None:
    """Run the Alembic scripts of `schema` to their head inside the caller's transaction."""
    import sqlalchemy as sa
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    # Alembic's command line has no other way to "head" either than this method of its scripts.
    found: Any = scripts(schema)

    def steps(
        revision: Any, context: Any
    ) -> Any:  # Any: what Alembic hands from one part to another
        return found._upgrade_revs("head", revision)

    borrowed: Any = _Borrowed(connection)
    engine = sa.create_engine("sqlite://", creator=lambda: borrowed, poolclass=sa.pool.StaticPool)
    with engine.connect() as over:
        context = MigrationContext.configure(
            over,
            opts={
                "render_as_batch": True,
                "transactional_ddl": False,
                "fn": steps,
            },
        )
        with Operations.context(context):
            context.run_migrations()
