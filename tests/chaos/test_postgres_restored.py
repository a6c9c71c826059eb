"""A PostgreSQL ledger that goes back to an earlier moment: what it forgot is not done again."""

import asyncio
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import asyncpg
import pytest

from nerve.brain import DurableRuntime
from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Tx, law, sql
from nerve.common.sql.postgres import open_postgres
from nerve.protocol.errors import WrongLedger
from support.servers.native import NativeServer
from support.servers.postgres import VARIABLE, database
from support.storm import SIDES, Storm, a_server, client, one, storm
from support.waiting import until

pytestmark = [pytest.mark.external, pytest.mark.chaos, pytest.mark.timeout(200)]

PUT = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, 'x', 1, 1, 1, 1)"
)


@law("test.put", keys=lambda unit: (unit,))
async def put(tx: Tx, unit: str) -> str:
    await tx.run(PUT, route=unit)
    return unit


async def copy(operator: "asyncpg.Connection[asyncpg.Record]", source: str, name: str) -> None:
    """As a backup does: `name` becomes what `source` is now. Nobody may use it meanwhile."""
    await operator.execute(f"alter database {source} allow_connections false")
    await operator.execute(
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{source}'"
    )
    await operator.execute(f"create database {name} template {source}")
    await operator.execute(f"alter database {source} allow_connections true")


async def put_back(operator: "asyncpg.Connection[asyncpg.Record]", source: str, name: str) -> None:
    """`name` is what it was when `source` was copied."""
    await operator.execute(f"drop database {name} with (force)")
    await operator.execute(f"alter database {source} rename to {name}")


@pytest.mark.rule(12)
async def test_whoever_opens_a_restored_ledger_raises_its_epoch() -> None:
    async with database() as url:
        operator = await asyncpg.connect(url.rpartition("/")[0] + "/postgres")
        name = url.rpartition("/")[2]
        clock = SystemClock()
        ledger = await open_postgres(url, SCHEMA, clock=clock, create=True)
        assert ledger.identity.epoch == 1
        await ledger.close()
        again = await open_postgres(url, SCHEMA, clock=clock, create=False)
        assert again.identity.epoch == 1, "it stands where it stood"
        await copy(operator, name, f"{name}_copy")
        assert await again.commit(put, "after the copy") == "after the copy"
        await put_back(operator, f"{name}_copy", name)
        with pytest.raises(WrongLedger, match="restored or replaced"):
            await again.commit(put, "in the copy")
        with pytest.raises(WrongLedger, match="restored or replaced"):
            await again.commit(put, "in the copy")
        await again.close()
        both = [await open_postgres(url, SCHEMA, clock=clock, create=False) for _ in range(2)]
        assert {each.identity.epoch for each in both} == {2}
        assert both[0].identity.epoch_at > 0
        for each in both:
            await each.close()
        await operator.close()


@pytest.mark.rule(12)
async def test_a_commit_that_is_gone_is_noticed_where_nothing_else_tells() -> None:
    """A snapshot of the whole volume has every number of the server; only what was written is missing."""
    async with database() as url:
        ledger = await open_postgres(url, SCHEMA, clock=SystemClock(), create=True)
        await ledger.commit(put, "one")
        operator = await asyncpg.connect(url)
        await operator.execute("update writer set batch = batch - 1")
        await operator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        with pytest.raises(WrongLedger, match="restored or replaced"):
            await ledger.commit(put, "two")
        await ledger.close()
        again = await open_postgres(url, SCHEMA, clock=SystemClock(), create=False)
        assert again.identity.epoch == 2
        await again.close()
        await operator.close()


async def test_who_comes_while_a_ledger_is_closed_takes_it_for_no_restored_one() -> None:
    """The writer of a closed lane is gone from the table, which only there means nothing."""
    async with database() as url:
        for turn in range(5):
            ledger = await open_postgres(url, SCHEMA, clock=SystemClock(), create=True)
            await ledger.commit(put, f"before {turn}")
            closing = asyncio.create_task(ledger.close())
            late = [ledger.submit(put, f"{turn} {number}") for number in range(50)]
            for _ in range(200):
                late.append(ledger.submit(put, f"{turn} {len(late)}"))
                await asyncio.sleep(0)
            await closing
            for error in await asyncio.gather(*late, return_exceptions=True):
                assert not isinstance(error, WrongLedger)
        again = await open_postgres(url, SCHEMA, clock=SystemClock(), create=False)
        assert again.identity.epoch == 1
        await again.close()


@pytest.fixture
def server() -> Generator[NativeServer]:
    with a_server() as made:
        yield made


@pytest.fixture
def world(server: NativeServer, tmp_path: Path) -> Generator[Storm]:
    with storm(server, tmp_path) as made:
        yield made


@pytest.mark.rule(2)
@pytest.mark.rule(12)
@pytest.mark.parametrize("side", SIDES)
async def test_a_database_that_goes_back_doubles_nothing(world: Storm, side: str) -> None:
    """Turns before the copy, after it, and in flight when it is put back, on either side."""
    name = world.databases[side].rpartition("/")[2]
    operator = await asyncpg.connect(world.server.address(VARIABLE))
    async with client(world) as runtime:
        early = await _several(world, runtime, 10)
        assert early == {"COMPLETED": 10}
        await copy(operator, name, f"{name}_copy")
        assert (await _several(world, runtime, 20))["COMPLETED"] == 20
    async with client(world) as runtime:
        work = [asyncio.create_task(one(world, runtime)) for _ in range(20)]
        await until(lambda: len(world.marks()) > 30, "some are under way")
        await put_back(operator, f"{name}_copy", name)
        for role in SIDES:
            world.kill(role)
            world.start(role)
        if side == "hands":
            answers = Counter(await asyncio.wait_for(asyncio.gather(*work), 90))
            assert answers["COMPLETED"] + answers["UNKNOWN"] == 20
        else:
            # What the Brain was told after the copy is gone with it; nobody can be waiting for that.
            for task in work:
                task.cancel()
            await asyncio.wait(work)
    async with client(world) as runtime:
        later = await asyncio.wait_for(_several(world, runtime, 20), 90)
        assert later == {"COMPLETED": 20}
    assert max(world.marks().values()) == 1, "no effect twice"
    await operator.close()


async def _several(world: Storm, runtime: DurableRuntime, count: int) -> Counter[str]:
    return Counter(await asyncio.gather(*(one(world, runtime) for _ in range(count))))
