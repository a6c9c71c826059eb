"""Many at once on one PostgreSQL ledger: callers that give up, and hints by the thousand."""

import asyncio
import random
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from nerve.brain import PostgresBackend
from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Row, Tx, law, sql
from nerve.common.sql.postgres import open_postgres
from support.servers.postgres import database
from support.waiting import soon, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

PUT = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, 'x', 1, 1, 1, 1) on conflict (route) do nothing"
)
LOCK = sql("select position from hands_ledger where route = :route for update")
BUSY = (
    "select count(*) from pg_stat_activity where datname = current_database()"
    " and pid <> pg_backend_pid() and state like 'idle in transaction%'"
)


@law("test.touch", keys=lambda unit: (unit,))
async def touch(tx: Tx, unit: str) -> Row | None:
    await tx.run(PUT, route=unit)
    return await tx.one(LOCK, route=unit)


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with database() as made:
        yield made


@pytest.mark.report("U93")
@pytest.mark.report("U98")
async def test_callers_that_give_up_leave_no_lock_and_take_no_connection(url: str) -> None:
    chance = random.Random(5)
    ledger = await open_postgres(url, SCHEMA, clock=SystemClock(), create=True)
    look = await asyncpg.connect(url)
    before = await look.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database()"
    )

    async def query(tx: Tx) -> list[Row]:
        return list(await tx.all(sql("select * from hands_ledger order by route")))

    async def caller(number: int) -> None:
        work = (
            ledger.commit(touch, f"r{number % 7}")
            if number % 3
            else asyncio.ensure_future(ledger.read(query))
        )
        task = asyncio.ensure_future(work)
        await asyncio.sleep(chance.random() * 0.01)
        task.cancel()
        await asyncio.wait([task])

    for _ in range(20):
        await asyncio.gather(*(caller(number) for number in range(40)))
    assert await soon(ledger.commit(touch, "r1")) is not None
    assert len(await soon(ledger.read(query))) == 7

    async def quiet() -> bool:
        return not await look.fetchval(BUSY)

    async with asyncio.timeout(10):
        while not await quiet():
            await asyncio.sleep(0.01)
    async with look.transaction():
        await look.execute("lock table hands_ledger in access exclusive mode nowait")
    after = await look.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database()"
    )
    # The reader opened its one connection meanwhile.
    assert after <= before + 1
    await ledger.close()
    await look.close()


@pytest.mark.report("U101")
async def test_a_hint_longer_than_a_notification_harms_nobody(url: str) -> None:
    async with await PostgresBackend.open(url) as one_, await PostgresBackend.open(url) as other:
        heard: list[str] = []
        other.wakeups.listen("a:*", heard.append)
        one_.wakeups.ring(f"a:{'x' * 10_000}")
        for number in range(2_000):
            one_.wakeups.ring(f"a:{number:04d}-{'x' * 100}")
        await until(lambda: any(each.startswith("a:1999-") for each in heard), "the last is heard")
        assert await one_.ledger.commit(touch, "still here") is not None
