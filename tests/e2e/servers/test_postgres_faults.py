"""A PostgreSQL ledger whose server, connections and answers fail at the worst moment."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from nerve.brain import PostgresBackend
from nerve.brain.ledger.schema import SCHEMA
from nerve.common import faults
from nerve.common.clock import SystemClock
from nerve.common.sql import Row, Tx, law, sql
from nerve.common.sql.postgres import PostgresLedger, open_postgres
from nerve.common.sql.postgres_source import check_pooling, redacted
from nerve.common.wakeups import Wakeups
from nerve.hands.ledger import HANDS_SCHEMA
from nerve.protocol.errors import BadInput, LedgerUnavailable, SchemaTooNew, WrongLedger
from support.servers.postgres import database, execute
from support.waiting import until

pytestmark = pytest.mark.external

PUT = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, :id, 1, 1, 1, 1)"
)
RAISE = sql("update hands_ledger set position = position + 1 where route = :route")
ALL = sql("select * from hands_ledger order by route")
POSITION = sql("select position from hands_ledger where route = :route")
LOCK = sql("select 1 from hands_ledger where route = :route for update")


@dataclass(frozen=True, slots=True)
class Item:
    route: str


@law("test.put", keys=lambda unit: (unit.route,))
async def put(tx: Tx, unit: Item) -> str:
    await tx.run(PUT, route=unit.route, id=unit.route)
    return unit.route


@law("test.raise", keys=lambda unit: (unit.route,))
async def add(tx: Tx, unit: Item) -> int:
    """Read, then write what was read: lost updates would show."""
    await tx.lock(LOCK, route=unit.route)
    row = await tx.one(POSITION, route=unit.route)
    assert row is not None
    await tx.run(RAISE, route=unit.route)
    return int(row["position"]) + 1


@law("test.refuse", keys=lambda unit: (unit.route,))
async def refuse(tx: Tx, unit: Item) -> None:
    await tx.run(PUT, route=unit.route, id="x")
    raise ValueError(f"no {unit.route}")


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with database() as made:
        yield made


@pytest.fixture
async def ledger(url: str) -> AsyncGenerator[PostgresLedger]:
    opened = await open_postgres(url, SCHEMA, clock=SystemClock(), create=True)
    yield opened
    faults.disarm()
    await opened.close()


async def items(ledger: PostgresLedger) -> list[Row]:
    async def query(tx: Tx) -> list[Row]:
        return list(await tx.all(ALL))

    return await ledger.read(query)


def backends(url: str, condition: str = "true") -> str:
    """A statement that ends every other session of the database."""
    return (
        "select pg_terminate_backend(pid) from pg_stat_activity"
        f" where datname = current_database() and pid <> pg_backend_pid() and {condition}"
    )


@pytest.mark.rule(8)
@pytest.mark.parametrize("answer", ["sql.before_commit", "sql.in_doubt"])
async def test_a_commit_in_doubt_is_decided_by_its_number(
    ledger: PostgresLedger, url: str, answer: str
) -> None:
    """The connection dies before the commit arrived, or after it was made: one verdict either way."""
    cut: list[int] = []

    def die() -> None:
        if not cut:
            cut.append(1)
            execute(ledger.source.address, backends(url))
            if answer == "sql.in_doubt":
                raise ConnectionResetError("the answer was lost")

    faults.hook(answer, die)
    units = [ledger.submit(put, Item(f"r{n}")) for n in range(20)]
    assert await asyncio.gather(*units) == [f"r{n}" for n in range(20)]
    assert cut
    assert len(await items(ledger)) == 20


@pytest.mark.rule(9)
async def test_two_writers_lose_no_update(ledger: PostgresLedger, url: str) -> None:
    other = await open_postgres(url, SCHEMA, clock=SystemClock(), create=False)
    await ledger.commit(put, Item("one"))
    sums = await asyncio.gather(*(each.commit(add, Item("one")) for each in [ledger, other] * 100))
    assert sorted(sums) == list(range(2, 202))
    await other.close()


async def test_one_that_raises_harms_nobody_in_its_batch(ledger: PostgresLedger) -> None:
    bad = ledger.submit(refuse, Item("bad"))
    good = [ledger.submit(put, Item(f"r{n}")) for n in range(10)]
    with pytest.raises(ValueError, match="no bad"):
        await bad
    assert len(await asyncio.gather(*good)) == 10
    assert [row["route"] for row in await items(ledger)] == sorted(f"r{n}" for n in range(10))


async def test_what_postgres_cannot_store_is_cleaned_and_kept(ledger: PostgresLedger) -> None:
    units = [ledger.submit(put, Item(route)) for route in ("a\0b", "good", "c")]
    assert len(await asyncio.gather(*units)) == 3
    assert {row["route"] for row in await items(ledger)} == {
        "a\N{REPLACEMENT CHARACTER}b",
        "good",
        "c",
    }


async def test_an_idle_reaper_and_a_failover_are_not_seen(ledger: PostgresLedger, url: str) -> None:
    for round in range(5):
        execute(ledger.source.address, backends(url))
        assert await ledger.commit(put, Item(f"r{round}")) == f"r{round}"
        execute(ledger.source.address, backends(url))
        assert len(await items(ledger)) == round + 1


@pytest.mark.report("U56")
async def test_a_lock_that_another_holds_is_waited_for(ledger: PostgresLedger, url: str) -> None:
    await ledger.commit(put, Item("one"))
    holder = await asyncpg.connect(url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("select * from hands_ledger for update")
    waiting = ledger.submit(add, Item("one"))
    assert await ledger.commit(put, Item("two")) == "two", "others go on meanwhile"
    assert not waiting.done()
    await transaction.rollback()
    assert await waiting == 2
    await holder.close()


async def test_two_ledgers_share_a_database_by_schema(url: str) -> None:
    clock = SystemClock()
    brain = await open_postgres(url, SCHEMA, clock=clock, create=True, name="brain side")
    hands = await open_postgres(url, HANDS_SCHEMA, clock=clock, create=True, name="hands")
    assert brain.identity.id != hands.identity.id
    await brain.close()
    await hands.close()
    with pytest.raises(WrongLedger, match="not of brain"):
        await open_postgres(url, SCHEMA, clock=clock, create=False, name="hands")
    with pytest.raises(WrongLedger, match="holds no brain ledger"):
        await open_postgres(url, SCHEMA, clock=clock, create=False)


async def test_a_newer_schema_is_refused(url: str) -> None:
    ledger = await open_postgres(url, SCHEMA, clock=SystemClock(), create=True)
    address = ledger.source.address
    await ledger.close()
    execute(address, "update meta set value = '99' where key in ('version', 'oldest_writer')")
    with pytest.raises(SchemaTooNew):
        await open_postgres(url, SCHEMA, clock=SystemClock(), create=False)


async def test_a_given_pool_is_leased_and_stays_open(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=0, max_size=8) as pool:
        async with await PostgresBackend.open(pool) as backend:
            assert await backend.ledger.commit(put, Item("x")) == "x"
            await _rings(backend.wakeups)
            lifeline = await backend.liveness.take("a-host")
            assert (await backend.liveness.look(["a-host"]))["a-host"] == "HELD"
            await lifeline.drop()
        assert await pool.fetchval("select count(*) from hands_ledger") == 1
        assert pool.get_size() - pool.get_idle_size() == 0, "everything was given back"


async def test_a_given_engine_is_leased_and_stays_open(url: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine("postgresql+asyncpg" + url[len("postgresql") :], pool_size=8)
    async with await PostgresBackend.open(engine) as backend:
        assert await backend.ledger.commit(put, Item("x")) == "x"
        await _rings(backend.wakeups)
    async with engine.connect() as connection:
        counted = await connection.execute(text("select count(*) from hands_ledger"))
        assert counted.scalar_one() == 1
    pool: Any = engine.pool
    assert pool.checkedout() == 0, "everything was given back"
    await engine.dispose()


async def _rings(wakeups: Wakeups) -> None:
    heard: list[str] = []
    wakeups.listen("brain:ready:*", heard.append)
    wakeups.ring("brain:ready:x")
    await until(lambda: heard == ["brain:ready:x"], "the ring is heard")


async def test_too_few_connections_are_refused_with_the_number(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=0, max_size=2) as pool:
        with pytest.raises(BadInput, match="at most 2 connections and 5 are needed"):
            await PostgresBackend.open(pool)


async def test_hints_cross_processes_and_survive_their_session(url: str) -> None:
    async with await PostgresBackend.open(url) as one, await PostgresBackend.open(url) as other:
        heard: list[str] = []
        other.wakeups.listen("a", heard.append)
        one.wakeups.ring("a")
        await until(lambda: heard == ["a"], "the other hears")
        execute(one.ledger.source.address, backends(url))

        def again() -> bool:
            one.wakeups.ring("a")
            return len(heard) > 1

        await until(again, "the other hears again")


async def test_a_pooler_without_sessions_is_refused(url: str) -> None:
    """Behind one, two of our connections share a session of the server."""
    connection: Any = await asyncpg.connect(url)
    with pytest.raises(BadInput, match="transaction mode"):
        await check_pooling(connection, connection)
    await connection.close()


WRONG = {
    "password": "postgresql://nerve:s3cr3t-word@{place}",
    "database": "postgresql://nerve:nerve@{server}/s3cr3t?sslpassword=s3cr3t-word",
    "server": "postgresql://u:s3cr3t-word@127.0.0.1:1/x",
    "kind": "mysql://u:s3cr3t-word@127.0.0.1:1/x",
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_no_error_holds_a_password(
    url: str, wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = url.partition("@")[2]
    address = WRONG[wrong].format(place=place, server=place.partition("/")[0])
    with pytest.raises((LedgerUnavailable, BadInput)) as caught:
        await open_postgres(address, SCHEMA, clock=SystemClock(), create=False)
    assert "s3cr3t-word" not in str(caught.value) + caplog.text
    with suppress(AttributeError):
        assert "s3cr3t-word" not in repr(caught.value.__cause__)


def test_a_url_is_shown_without_its_secrets() -> None:
    shown = redacted("postgresql://u:s3cr3t@h:5/db?sslpassword=s3cr3t&sslmode=require")
    assert shown == "postgresql://u@h:5/db?sslmode=require"
