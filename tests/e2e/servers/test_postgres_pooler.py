"""A PostgreSQL ledger behind a real pooler, and on connections whose settings are the caller's."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import asyncpg
import pytest

from nerve.brain import PostgresBackend
from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Tx, law, sql
from nerve.common.sql.postgres import open_postgres
from nerve.protocol.errors import BadInput
from support.servers.pgbouncer import pooler
from support.servers.postgres import database
from support.waiting import until

pytestmark = pytest.mark.external

PUT = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, 'x', 1, 1, 1, 1)"
)
TABLES = (
    "select count(*) from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
)


@law("test.put", keys=lambda unit: (unit,))
async def put(tx: Tx, unit: str) -> str:
    await tx.run(PUT, route=unit)
    return unit


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with database() as made:
        yield made


@pytest.mark.report("U94")
@pytest.mark.parametrize("size", [1, 2, 20])
async def test_transaction_mode_is_refused_before_anything_is_written(url: str, size: int) -> None:
    async with pooler(url, "transaction", size=size) as through:
        for _ in range(3):
            with pytest.raises(BadInput, match="transaction mode, which keeps no session") as said:
                await open_postgres(through, SCHEMA, clock=SystemClock(), create=True, name="x")
            assert "session mode" in said.value.next_step
    connection = await asyncpg.connect(url)
    assert await connection.fetchval(TABLES) == 0
    await connection.close()


@pytest.mark.report("U94")
async def test_transaction_mode_is_refused_for_a_given_pool_too(url: str) -> None:
    async with pooler(url, "transaction") as through:
        async with asyncpg.create_pool(
            through, min_size=0, max_size=8, statement_cache_size=0
        ) as pool:
            with pytest.raises(BadInput, match="transaction mode"):
                await PostgresBackend.open(pool)


async def test_session_mode_serves_laws_hints_and_locks(url: str) -> None:
    async with (
        pooler(url, "session") as through,
        await PostgresBackend.open(through) as one,
        await PostgresBackend.open(through) as other,
    ):
        names = [f"r{n}" for n in range(100)]
        pairs = zip([one, other] * 50, names, strict=True)
        done = await asyncio.gather(*(each.ledger.commit(put, name) for each, name in pairs))
        assert done == names
        heard: list[str] = []
        other.wakeups.listen("a", heard.append)
        one.wakeups.ring("a")
        await until(lambda: heard == ["a"], "the other hears")
        lifeline = await one.liveness.take("a-host")
        assert (await other.liveness.look(["a-host"]))["a-host"] == "HELD"
        await lifeline.drop()


@pytest.mark.capability("G2.3")
async def test_settings_of_a_given_pool_hold_and_come_back(url: str) -> None:
    owner = await asyncpg.connect(url)
    await owner.execute(
        "create role worker; create schema place authorization worker; grant worker to nerve"
    )
    settings = {"search_path": "place", "role": "worker", "lock_timeout": "1234"}
    async with asyncpg.create_pool(url, min_size=0, max_size=8, server_settings=settings) as pool:
        async with await PostgresBackend.open(pool) as backend:
            assert await backend.ledger.commit(put, "x") == "x"
            assert await _shown(pool) == ("place", "worker", "1234ms")
        assert await _shown(pool) == ("place", "worker", "1234ms")
    table = "select tableowner from pg_tables where tablename = 'turn'"
    assert await owner.fetchval(table) == "worker"
    assert await owner.fetchval("select count(*) from place.hands_ledger") == 1
    await owner.execute("drop schema place cascade; drop role worker")
    await owner.close()


async def _shown(pool: Any) -> tuple[str, ...]:
    names = ("search_path", "role", "lock_timeout")
    row = await pool.fetchrow("select " + ", ".join(f"current_setting('{n}')" for n in names))
    return tuple(row)


async def _set_something(raw: Any) -> None:
    await raw.execute("set lock_timeout to 4321; set search_path to public, x")


@pytest.mark.capability("G2.3")
async def test_what_an_engine_set_comes_back_as_it_was(url: str) -> None:
    from sqlalchemy import event, text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(f"postgresql+asyncpg{url[len('postgresql') :]}", pool_size=8)

    @event.listens_for(engine.sync_engine, "connect")
    def _(connection: Any, record: object) -> None:
        connection.run_async(_set_something)

    async with await PostgresBackend.open(engine, schema="there") as backend:
        assert await backend.ledger.commit(put, "x") == "x"
    async with engine.connect() as connection:
        shown = await connection.execute(
            text("select current_setting('lock_timeout'), current_setting('search_path')")
        )
        assert tuple(shown.one()) == ("4321ms", "public, x")
    await engine.dispose()
