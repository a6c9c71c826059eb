"""Bring a PostgreSQL database to the schema of this build, or refuse it by name.

All of it happens under one advisory lock. A fresh ledger is made from the tables, an older one goes
through the numbered Alembic scripts, in one transaction; storage settings are the same for both.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from nerve.common.logs import get_log
from nerve.common.sql.ledger import LedgerIdentity
from nerve.common.sql.migrate import Meta, Schema, check_meta
from nerve.common.sql.postgres_source import Source, leased, quoted
from nerve.protocol.errors import Damaged, WrongLedger
from nerve.protocol.identity import new_uuid7

if TYPE_CHECKING:
    from sqlalchemy import Connection as SyncConnection

_log = get_log("nerve.common.postgres")

_LOCK = "select pg_advisory_xact_lock(hashtextextended(current_schema() || '.nerve', 7))"
_PATIENT = "set local lock_timeout = '50s'"
_MIGRATING = 0x6E_65_72_76

# Not `to_regclass`: within a transaction it may go on saying what the cache held before the lock came.
_MADE = (
    "select exists (select from pg_class where relname = 'meta' and relkind = 'r'"
    " and pg_table_is_visible(oid))"
)

# Rows that change all the time: room in their page keeps the new version near, and dead ones go soon.
_HOT = "fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0"
_CHURN = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0"
STORAGE = {
    "meta": _HOT,
    "writer": _HOT,
    "host": _HOT,
    "heartbeat": _HOT,
    "session": _HOT,
    "thread": _HOT,
    "turn": _HOT,
    "intent": _HOT,
    "execution": _HOT,
    "hands_ledger": _HOT,
    "outbox": _CHURN,
    "inbox": _CHURN,
}


# Server, timeline, database and table. A dump that was read or a copy has other numbers, a base backup
# that was rolled forward another timeline. So has a standby that took over: it may have missed the last
# commits, which comes to the same.
_TIMELINE = "select left(pg_walfile_name(pg_current_wal_lsn()), 8)"
_PLACE = (
    "select concat_ws('/', (select system_identifier from pg_control_system()),"
    " (select oid from pg_database where datname = current_database()), 'meta'::regclass::oid)"
)
_HOME = "select max(value) filter (where key = 'home') as home from meta"
_MOVED_IN = (
    "insert into meta (key, value) values ('home', $1)"
    " on conflict (key) do update set value = excluded.value"
)
_MOVED_OUT = "delete from meta where key = 'home'"
_RAISE = "update meta set value = cast(cast(value as bigint) + 1 as text) where key = 'epoch'"
_SINCE = (
    "insert into meta (key, value) values ('epoch_at', $1)"
    " on conflict (key) do update set value = excluded.value"
)


async def look(source: Source) -> Meta | None:
    """What stands in the database; None: no ledger yet. Raises Damaged."""
    connection = await source.lease()
    try:
        return await read_meta(connection)
    finally:
        await source.give_back(connection)


async def prepare(source: Source, schema: Schema, *, create: bool, now: int) -> LedgerIdentity:
    """Check, make or upgrade the ledger.

    Raises:
        WrongLedger: it is missing, or holds another room's tables.
        SchemaTooNew: a newer build made it and says that this one may not write it.
    """
    async with leased(source) as connection:
        meta = await read_meta(connection)
        if meta is None:
            if not create:
                raise WrongLedger(
                    f"the database holds no {schema.room} ledger",
                    where="--database",
                    next_step="make it with `nerve migrate up`, or start a host there",
                )
            meta = await _create(connection, schema, source, now)
        check_meta("the database", meta, schema)
        if meta.version < schema.version:
            await _upgrade(connection, schema)
        meta = await _recognize(connection, meta, now)
    return meta.identity


async def _recognize(connection: "asyncpg.Connection[Any]", meta: Meta, now: int) -> Meta:
    """A ledger that stands elsewhere than it did was restored, and may have forgotten what it ran: its
    epoch is raised before anything is admitted."""
    home = f"{await connection.fetchval(_PLACE)} {await connection.fetchval(_TIMELINE)}"
    if await connection.fetchval(_HOME) == home:
        return meta
    async with connection.transaction(isolation="read_committed"):
        await _only_one(connection)
        if await connection.fetchval(_HOME) != home:
            await connection.execute(_RAISE)
            await connection.execute(_SINCE, str(now))
            await connection.execute(_MOVED_IN, home)
            _log.warning(
                "the ledger was restored or moved: what it may have forgotten is not repeated",
                cause="restored",
            )
    found = await read_meta(connection)
    assert found is not None
    return found


async def still_there(connection: "asyncpg.Connection[Any]", missing: bool) -> bool:
    """Whether the ledger stands where this process opened it. `missing`: a commit of this process is
    not in it any more, which only a restore explains; whoever opens it next is told."""
    if missing:
        await connection.execute(_MOVED_OUT)
        return False
    home = await connection.fetchval(_HOME)
    place = await connection.fetchval(_PLACE)
    return home is not None and home.partition(" ")[0] == place


async def read_meta(connection: "asyncpg.Connection[Any]") -> Meta | None:
    if not await connection.fetchval(_MADE):
        return None
    rows = await connection.fetch("select key, value from meta")
    values = {row["key"]: row["value"] for row in rows}
    try:
        return Meta.of(values)
    except (KeyError, ValueError) as error:
        raise Damaged(
            f"the ledger in the database does not say what it is: {error}",
            where="meta",
            next_step="restore it from a backup, or name an empty database or schema",
        ) from error


async def _only_one(connection: "asyncpg.Connection[Any]") -> None:
    """Until the transaction ends. Another host makes all tables meanwhile, or moves them to this build:
    it takes as long as it takes, and the patience of laws with each other's locks is no measure of it."""
    await connection.execute(_PATIENT)
    await connection.execute(_LOCK)


async def _make_schema(connection: "asyncpg.Connection[Any]", name: str) -> None:
    """Before the lock, which is the schema's own. `if not exists` does not see one that another is making."""
    with suppress(asyncpg.UniqueViolationError):
        await connection.execute(f"create schema if not exists {quoted(name)}")


async def _create(
    connection: "asyncpg.Connection[Any]", schema: Schema, source: Source, now: int
) -> Meta:
    if source.schema is not None:
        await _make_schema(connection, source.schema)
    meta = Meta(
        room=schema.room,
        id=new_uuid7(now),
        epoch=1,
        version=schema.version,
        oldest_writer=schema.oldest_writer,
        created_at=now,
    )
    # What was made while this waited for the lock must be seen, whatever the database's default.
    async with connection.transaction(isolation="read_committed"):
        await _only_one(connection)
        # Two hosts may start on an empty database at once: the second finds the first one's tables.
        found = await read_meta(connection)
        if found is not None:
            return found
        for statement in ddl(schema):
            await connection.execute(statement)
        await _store(connection)
        await connection.execute(
            "create table alembic_version (version_num varchar(32) not null primary key)"
        )
        await connection.execute(
            "insert into alembic_version (version_num) values ($1)", f"{schema.version:04d}"
        )
        await connection.executemany(
            "insert into meta (key, value) values ($1, $2)", [*meta.rows(), ("position", "0")]
        )
        home = f"{await connection.fetchval(_PLACE)} {await connection.fetchval(_TIMELINE)}"
        await connection.execute(_MOVED_IN, home)
    return meta


def ddl(schema: Schema) -> list[str]:
    """CREATE statements of a fresh ledger, in order."""
    from sqlalchemy.dialects import postgresql as dialect
    from sqlalchemy.schema import CreateIndex, CreateTable

    statements: list[str] = []
    compiled: Any = dialect.dialect  # SQLAlchemy types no dialect's constructor.
    compiled = compiled()
    for table in schema.metadata().sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=compiled)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        statements += [str(CreateIndex(index).compile(dialect=compiled)) for index in indexes]
    return statements


async def _store(connection: "asyncpg.Connection[Any]") -> None:
    for table, options in STORAGE.items():
        if await connection.fetchval("select to_regclass($1)", quoted(table)) is not None:
            await connection.execute(f"alter table {quoted(table)} set ({options})")


async def _upgrade(connection: "asyncpg.Connection[Any]", schema: Schema) -> None:
    async with connection.transaction(isolation="read_committed"):
        await _only_one(connection)
        meta = await read_meta(connection)
        if meta is None or meta.version >= schema.version:
            return
        await _run_migrations(connection, schema)
        await _store(connection)
        await connection.executemany(
            "update meta set value = $2 where key = $1",
            [("version", str(schema.version)), ("oldest_writer", str(schema.oldest_writer))],
        )
    await connection.reload_schema_state()


async def migrate_empty(connection: "asyncpg.Connection[Any]", schema: Schema) -> None:
    """All scripts from the first on, into an empty schema: what a test compares with a fresh one."""
    async with connection.transaction():
        await _run_migrations(connection, schema)
        await _store(connection)


async def _run_migrations(connection: "asyncpg.Connection[Any]", schema: Schema) -> None:
    """Run the scripts to their head over the driver's own connection and transaction."""
    from sqlalchemy.ext.asyncio import create_async_engine
    from sqlalchemy.pool import NullPool

    async def creator(*args: Any, **options: Any) -> Any:
        return _Borrowed(connection)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=creator, poolclass=NullPool)
    async with engine.connect() as over:
        await over.run_sync(_scripts, schema)
    await engine.dispose()


def _scripts(over: "SyncConnection", schema: Schema) -> None:
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext

    from nerve.common.sql.migrate import scripts

    found: Any = scripts(schema)  # What runs scripts has no public name in Alembic.

    def upgrade(revision: Any, _: Any) -> Any:
        return found._upgrade_revs("head", revision)

    context = MigrationContext.configure(over, opts={"transactional_ddl": False, "fn": upgrade})
    with Operations.context(context):
        context.run_migrations()


class _NoTransaction:
    """The caller's transaction goes on, whatever SQLAlchemy begins and ends."""

    async def start(self) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class _Borrowed:
    """The caller's connection, whose transaction and life only the caller ends."""

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:  # Any: whatever a connection has under that name
        return getattr(self._connection, name)

    def transaction(self, **options: object) -> _NoTransaction:
        return _NoTransaction()

    async def set_type_codec(self, *args: object, **options: object) -> None: ...

    async def close(self, **options: object) -> None: ...

    def terminate(self) -> None: ...
