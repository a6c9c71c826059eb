"""The numbered scripts and the tables say the same on PostgreSQL."""

import asyncio
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Schema
from nerve.common.sql.postgres import open_postgres
from nerve.common.sql.postgres_schema import migrate_empty
from nerve.hands.ledger import HANDS_SCHEMA
from support.servers.postgres import database

pytestmark = pytest.mark.external

SHAPES = (
    "select table_name, column_name, data_type, is_nullable, column_default"
    " from information_schema.columns where table_schema = 'SCHEMA' order by 1, 2",
    "select indexname, replace(indexdef, 'SCHEMA.', '') from pg_indexes"
    " where schemaname = 'SCHEMA' order by 1",
    "select c.relname, x.contype::text, pg_get_constraintdef(x.oid) from pg_constraint x"
    " join pg_class c on c.oid = x.conrelid where c.relnamespace = 'SCHEMA'::regnamespace"
    " order by 1, 2, 3",
    "select relname, reloptions from pg_class where relnamespace = 'SCHEMA'::regnamespace"
    " and relkind = 'r' order by 1",
)


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with database() as made:
        yield made


@pytest.mark.parametrize("schema", [SCHEMA, HANDS_SCHEMA], ids=["brain", "hands"])
async def test_a_migrated_ledger_equals_a_fresh_one(url: str, schema: Schema) -> None:
    fresh = await open_postgres(url, schema, clock=SystemClock(), create=True, name="fresh")
    await fresh.close()
    connection = await asyncpg.connect(url)
    await connection.execute("create schema migrated; set search_path to migrated")
    await migrate_empty(connection, schema)
    for shape in SHAPES:
        one, other = [
            [
                tuple(str(value).replace(f"{name}.", "") for value in row)
                for row in await connection.fetch(shape.replace("SCHEMA", name))
                if row[0] not in ("alembic_version", "alembic_version_pkc", "alembic_version_pkey")
            ]
            for name in ("fresh", "migrated")
        ]
        assert one == other
    await connection.close()


async def test_hosts_that_start_at_once_make_one_ledger(url: str) -> None:
    opened = await asyncio.gather(
        *(open_postgres(url, SCHEMA, clock=SystemClock(), create=True) for _ in range(4))
    )
    assert len({ledger.identity.id for ledger in opened}) == 1
    for ledger in opened:
        await ledger.close()


BLOCKED = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"


async def test_a_schema_that_another_host_is_making_is_waited_for(url: str) -> None:
    gate = await asyncpg.connect(url)
    held = gate.transaction()
    await held.start()
    await gate.execute("create schema of_ours")
    opening = asyncio.create_task(
        open_postgres(url, SCHEMA, clock=SystemClock(), create=True, name="of_ours")
    )
    watcher = await asyncpg.connect(url)
    async with asyncio.timeout(30):
        while not await watcher.fetchval(BLOCKED):
            await asyncio.sleep(0.01)
    await held.commit()
    await (await opening).close()
    await gate.close()
    await watcher.close()


LOCK = "select pg_advisory_xact_lock(hashtextextended(current_schema() || '.nerve', 7))"
WAITING = "select count(*) from pg_locks where locktype = 'advisory' and not granted"


async def test_a_host_that_waited_sees_the_ledger_that_was_made_meanwhile(url: str) -> None:
    """Both have seen an empty database before the first of them may make anything."""
    gate = await asyncpg.connect(url)
    held = gate.transaction()
    await held.start()
    await gate.execute(LOCK)
    opening = [
        asyncio.create_task(open_postgres(url, HANDS_SCHEMA, clock=SystemClock(), create=True))
        for _ in range(3)
    ]
    async with asyncio.timeout(30):
        while await gate.fetchval(WAITING) < len(opening):
            await asyncio.sleep(0.01)
    await held.commit()
    opened = await asyncio.gather(*opening)
    await gate.close()
    assert len({ledger.identity.id for ledger in opened}) == 1
    for ledger in opened:
        await ledger.close()


async def test_a_host_waits_for_another_that_makes_the_tables_however_long_that_takes(
    url: str,
) -> None:
    """The patience of laws with each other's locks is over long before, and ends no start."""
    gate = await asyncpg.connect(url)
    held = gate.transaction()
    await held.start()
    await gate.execute(LOCK)
    hasty = f"{url}{'&' if '?' in url else '?'}lock_timeout=50"
    opening = asyncio.create_task(
        open_postgres(hasty, HANDS_SCHEMA, clock=SystemClock(), create=True)
    )
    waits = f"{WAITING} and clock_timestamp() - waitstart > interval '500 ms'"
    async with asyncio.timeout(30):
        while not opening.done() and not await gate.fetchval(waits):
            await asyncio.sleep(0.01)
    await held.commit()
    ledger = await opening
    await ledger.close()
    await gate.close()
