"""What a PostgreSQL server can do to its clients, under work: nothing is lost, nothing doubled."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from nerve.brain import DurableRuntime
from support.servers.native import NativeServer
from support.servers.postgres import VARIABLE
from support.storm import SIDES, Row, Storm, a_server, client, during, one, storm

pytestmark = [
    pytest.mark.external,
    pytest.mark.chaos,
    pytest.mark.timeout(240),
]

OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
    " and datname = $1"
)
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
COMMITTING = f"{OTHERS} and query like '%insert into writer%' and state = 'active'"


@pytest.fixture(scope="module")
def server() -> Generator[NativeServer]:
    with a_server() as made:
        yield made


@pytest.fixture(scope="module")
def world(server: NativeServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[Storm]:
    """One pair of hosts for all of it: they outlive each fault."""
    with storm(server, tmp_path_factory.mktemp("storm")) as made:
        yield made


@pytest.fixture
async def runtime(world: Storm) -> AsyncGenerator[DurableRuntime]:
    async with client(world) as made:
        async with asyncio.timeout(60):
            assert await one(world, made) == "COMPLETED"
        yield made


MOVING_SECONDS = 20.0
"""No more than a guard against hanging: what it is on an idle machine stands in the table."""


def check(row: Row, world: Storm) -> None:
    assert (row.lost, row.doubled, row.unknown) == (0, 0, 0), row
    assert row.moving_seconds <= MOVING_SECONDS, row
    assert all(process.poll() is None for process in world.running.values()), "hosts go on"


@pytest.mark.rule(3)
@pytest.mark.capability("D16.1")
@pytest.mark.storm
async def test_a_killed_server(world: Storm, runtime: DurableRuntime) -> None:
    async def kill() -> None:
        await asyncio.to_thread(world.server.kill)
        await asyncio.to_thread(world.server.start)

    check(await during(world, runtime, "SIGKILL and restart", kill), world)


@pytest.mark.rule(4)
@pytest.mark.storm
async def test_a_server_that_stands_still(world: Storm, runtime: DurableRuntime) -> None:
    async def freeze() -> None:
        with world.frozen():
            await asyncio.sleep(1.8)  # more than three heartbeats

    check(await during(world, runtime, "SIGSTOP, SIGCONT", freeze), world)


@pytest.mark.parametrize("side", SIDES)
async def test_links_that_are_cut(world: Storm, runtime: DurableRuntime, side: str) -> None:
    proxy = world.proxies[side]

    async def cut() -> None:
        for _ in range(5):
            await asyncio.to_thread(proxy.cut)
            await asyncio.sleep(0.1)

    row = await during(world, runtime, f"{side}: links cut", cut)
    check(row, world)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.storm
async def test_links_that_are_cut_for_a_while(
    world: Storm, runtime: DurableRuntime, side: str
) -> None:
    proxy = world.proxies[side]

    async def away() -> None:
        proxy.refuse()
        await asyncio.to_thread(proxy.cut)
        await asyncio.sleep(2)
        proxy.refuse(False)

    row = await during(world, runtime, f"{side}: links refused for 2 s", away)
    check(row, world)


@pytest.mark.rule(4)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.storm
async def test_links_that_stall(world: Storm, runtime: DurableRuntime, side: str) -> None:
    proxy = world.proxies[side]

    async def stall() -> None:
        await asyncio.to_thread(proxy.stall)
        await asyncio.sleep(2.5)
        await asyncio.to_thread(proxy.go_on)

    row = await during(world, runtime, f"{side}: links stall for 2.5 s", stall, tries=2)
    check(row, world)


@pytest.mark.rule(8)
@pytest.mark.parametrize("side", SIDES)
async def test_commits_whose_answer_is_lost(
    world: Storm, runtime: DurableRuntime, side: str
) -> None:
    """The server has committed, and the link goes with the answer."""
    proxy = world.proxies[side]
    before = proxy.swallowed

    async def swallow() -> None:
        for _ in range(4):
            proxy.swallow_answer_to(b"; commit")
            await asyncio.sleep(0.15)

    row = await during(world, runtime, f"{side}: answer to COMMIT lost", swallow)
    assert proxy.swallowed - before >= 8
    check(row, world)


@pytest.mark.rule(8)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.storm
async def test_sessions_that_are_ended_while_they_commit(
    world: Storm, runtime: DurableRuntime, side: str
) -> None:
    database = world.databases[side].rpartition("/")[2]
    operator = await asyncpg.connect(world.server.address(VARIABLE))
    ends = 0

    async def end() -> None:
        nonlocal ends
        for _ in range(300):
            ends += len(await operator.fetch(COMMITTING, database))
            await asyncio.sleep(0.003)
        await operator.fetch(OTHERS, database)

    row = await during(world, runtime, f"{side}: sessions ended in COMMIT", end)
    await operator.close()
    assert ends >= 3
    check(row, world)


@pytest.mark.report("U97")
@pytest.mark.storm
async def test_an_idle_reaper(world: Storm, runtime: DurableRuntime) -> None:
    """Whatever is idle for a fifth of a second is ended, on both sides, all the time."""
    operator = await asyncpg.connect(world.server.address(VARIABLE))

    async def reap() -> None:
        for side in SIDES:
            name = world.databases[side].rpartition("/")[2]
            await operator.execute(f"alter database {name} set idle_session_timeout = '200ms'")
            await operator.fetch(OTHERS, name)
        await asyncio.sleep(4)
        for side in SIDES:
            name = world.databases[side].rpartition("/")[2]
            await operator.execute(f"alter database {name} reset idle_session_timeout")
            await operator.fetch(OTHERS, name)

    row = await during(world, runtime, "idle sessions reaped for 4 s", reap, tries=2)
    await operator.close()
    check(row, world)


@pytest.mark.report("U56")
@pytest.mark.parametrize(("side", "tables"), [("brain", "turn"), ("hands", "execution")])
@pytest.mark.storm
async def test_locks_that_outlast_the_timeout(
    world: Storm, runtime: DurableRuntime, side: str, tables: str
) -> None:
    operator = await asyncpg.connect(world.databases[side])

    async def hold() -> None:
        async with operator.transaction():
            await operator.execute(f"lock table {tables} in exclusive mode")
            await asyncio.sleep(5)  # the ledger's own timeout is two seconds

    row = await during(world, runtime, f"{side}: tables locked for 5 s", hold, tries=2)
    await operator.close()
    check(row, world)


@pytest.mark.rule(10)
@pytest.mark.report("U99")
@pytest.mark.parametrize(
    ("side", "later", "earlier"),
    [
        (
            "brain",
            "select 1 from thread order by created_at desc limit 8 for update",
            "select 1 from session order by created_at desc limit 8 for update",
        ),
        (
            "hands",
            "select 1 from meta where key = 'position' for update",
            "select 1 from execution order by admitted_at desc limit 8 for update",
        ),
    ],
    ids=SIDES,
)
@pytest.mark.storm
async def test_deadlocks(
    world: Storm, runtime: DurableRuntime, side: str, later: str, earlier: str
) -> None:
    """Somebody locks first what laws lock last, and the ledger is the one that is ended."""
    url = world.databases[side]
    name = url.rpartition("/")[2]
    # Whoever waits for longer than this looks for a deadlock, and is ended.
    operator = await asyncpg.connect(url, server_settings={"deadlock_timeout": "10s"})
    await operator.execute(f"alter database {name} set deadlock_timeout = '10ms'")
    await operator.fetch(OTHERS, name)
    before = await operator.fetchval(DEADLOCKS)

    async def cross() -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + 3
        while loop.time() < ends:
            async with operator.transaction():
                await operator.execute(later)
                await asyncio.sleep(0.02)
                await operator.execute(earlier)
            await asyncio.sleep(0.02)

    row = await during(world, runtime, f"{side}: rows locked crosswise", cross, tries=2)
    deadlocks = await operator.fetchval(DEADLOCKS) - before
    await operator.execute(f"alter database {name} reset deadlock_timeout")
    await operator.close()
    assert deadlocks, "somebody was ended"
    check(row, world)


@pytest.mark.rule(10)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.storm
async def test_serialization_failures(world: Storm, runtime: DurableRuntime, side: str) -> None:
    """A database whose transactions are serializable by default refuses many of them."""
    name = world.databases[side].rpartition("/")[2]
    operator = await asyncpg.connect(world.server.address(VARIABLE))

    async def strict() -> None:
        await operator.execute(
            f"alter database {name} set default_transaction_isolation = 'serializable'"
        )
        await operator.fetch(OTHERS, name)
        await asyncio.sleep(3)
        await operator.execute(f"alter database {name} reset default_transaction_isolation")
        await operator.fetch(OTHERS, name)

    row = await during(world, runtime, f"{side}: serializable for 3 s", strict, tries=2)
    await operator.close()
    check(row, world)


@pytest.mark.storm
async def test_credentials_that_are_revoked_for_a_while(
    world: Storm, runtime: DurableRuntime
) -> None:
    operator = await asyncpg.connect(world.server.address(VARIABLE))

    async def revoke() -> None:
        await operator.execute("alter role nerve nologin")
        for side in SIDES:
            await operator.fetch(OTHERS, world.databases[side].rpartition("/")[2])
        await asyncio.sleep(2)
        await operator.execute("alter role nerve login")

    row = await during(world, runtime, "credentials revoked for 2 s", revoke, tries=2)
    await operator.close()
    check(row, world)


@pytest.mark.storm
async def test_every_connection_is_taken(world: Storm, runtime: DurableRuntime) -> None:
    async def take() -> None:
        taken = await take_all(world.server.address(VARIABLE))
        await asyncio.sleep(2)
        for connection in taken:
            await connection.close()

    row = await during(world, runtime, "max_connections for 2 s", take, tries=2)
    check(row, world)


async def take_all(url: str) -> list["asyncpg.Connection[Any]"]:
    """Every connection of the server, also those that hosts and clients had."""
    taken: list[asyncpg.Connection[Any]] = []
    for _ in range(2):
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await asyncpg.connect(url))
        await taken[0].execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> all($1)",
            [connection.get_server_pid() for connection in taken],
        )
    return taken
