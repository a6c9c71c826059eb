"""A PostgreSQL ledger over the caller's own few connections: all of them are given back, whatever happens."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
import pytest

from nerve.brain import DurableRuntime, PostgresBackend
from nerve.brain.agents.context import Context
from nerve.brain.handles import Turn
from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Row, Tx, law, sql
from nerve.common.sql.postgres import PostgresLedger, open_postgres
from nerve.common.sql.postgres_liveness import LoopLifeline
from nerve.common.sql.postgres_source import source_of
from nerve.common.sql.postgres_wakeups import PostgresWakeups
from nerve.protocol.content import Message
from nerve.protocol.errors import LedgerUnavailable
from support.brain_cell import QUICK, function, hello, opened
from support.servers.postgres import database
from support.waiting import running, soon, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(120)]

FEW = 10
OBSERVERS = 1_000
CALLS = ("execute", "fetch", "fetchval", "fetchrow", "add_listener")
OTHERS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
    " and datname = current_database()"
)
PUT = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, 'x', 1, 1, 1, 1)"
)
ALL = sql("select * from hands_ledger order by route")


@law("test.put", keys=lambda unit: (unit,))
async def put(tx: Tx, unit: str) -> str:
    await tx.run(PUT, route=unit)
    return unit


async def all_rows(tx: Tx) -> list[Row]:
    return list(await tx.all(ALL))


@dataclass(frozen=True)
class Given:
    """What a caller opens a ledger from, and how many of its connections are taken."""

    url: str
    value: Any
    taken: Callable[[], int]


@asynccontextmanager
async def given(kind: str, url: str, most: int = FEW) -> AsyncGenerator[Given]:
    """Closing it waits for whatever was not given back."""
    async with AsyncExitStack() as stack:
        if kind == "pool":
            pool = await asyncpg.create_pool(url, min_size=0, max_size=most)
            stack.push_async_callback(lambda: soon(pool.close()))
            yield Given(url, pool, lambda: pool.get_size() - pool.get_idle_size())
        else:
            from sqlalchemy.ext.asyncio import create_async_engine

            address = "postgresql+asyncpg" + url[len("postgresql") :]
            engine = create_async_engine(address, pool_size=most, max_overflow=0)
            stack.push_async_callback(engine.dispose)
            of_engine: Any = engine.pool
            yield Given(url, engine, of_engine.checkedout)


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with database() as made:
        yield made


@pytest.fixture(params=["pool", "engine"])
async def few(request: pytest.FixtureRequest, url: str) -> AsyncGenerator[Given]:
    async with given(request.param, url) as made:
        yield made


async def _seen(turn: Turn) -> str:
    return [event.type async for event in turn.events()][-1]


@pytest.mark.report("U95")
@pytest.mark.capability("G2.3")
@pytest.mark.parametrize("kind", ["pool", "engine", "url"])
async def test_a_thousand_observers_of_one_process_all_see_the_end_and_no_beat_is_late(
    url: str, kind: str
) -> None:
    gate = asyncio.Event()

    async def body(ctx: Context, input: Message) -> str:
        await gate.wait()
        return "done"

    settings = replace(QUICK, scan_seconds=0.5, lease_seconds=6.0, heartbeat_seconds=0.2)
    async with AsyncExitStack() as stack:
        few = None
        if kind != "url":
            few = await stack.enter_async_context(given(kind, url))
        look = await asyncpg.connect(url)
        stack.push_async_callback(look.close)
        backend = await PostgresBackend.open(url if few is None else few.value)
        runtime = await DurableRuntime(backend, agents=[function(body)], settings=settings).start()
        assert runtime.execution is not None
        host, latest = runtime.execution.host, 0.0
        turn = await (await opened(runtime)).submit("r", "x")
        results = [asyncio.ensure_future(turn.result()) for _ in range(OBSERVERS // 2)]
        ends = [asyncio.ensure_future(_seen(turn)) for _ in range(OBSERVERS // 2)]
        counter = "select counter from heartbeat"
        before = await look.fetchval(counter)
        while await look.fetchval(counter) < before + 15:
            latest = max(latest, host.beat_late_seconds)
            assert host.alive()
        connections = "select count(*) from pg_stat_activity where datname = current_database()"
        assert await look.fetchval(connections) <= FEW + 1
        gate.set()
        assert {each.text for each in await soon(asyncio.gather(*results))} == {"done"}
        assert {*await soon(asyncio.gather(*ends))} == {"turn.completed"}
        assert latest < settings.lease_seconds / 3
        assert host is runtime.execution.host and not host.lost.is_set()
        await soon(runtime.close())
        await soon(backend.close())
        assert few is None or few.taken() == 0, "everything was given back"


@pytest.mark.report("U97")
@pytest.mark.report("U33")
@pytest.mark.capability("G2.3")
async def test_what_a_server_ends_is_replaced_and_the_lost_ones_are_no_longer_counted(
    few: Given,
) -> None:
    """Every session of it, ten times over: the host stays the same one, and the work goes on."""
    settings = replace(QUICK, lease_seconds=30.0, heartbeat_seconds=0.1)
    operator = await asyncpg.connect(few.url)
    async with await PostgresBackend.open(few.value) as backend:
        async with DurableRuntime(backend, agents=[function(hello)], settings=settings) as runtime:
            assert runtime.execution is not None
            host = runtime.execution.host
            session = await opened(runtime)
            for number in range(10):
                turn = await session.submit(f"r{number}", "x")
                assert (await soon(turn.result())).text == "hello x"
                await operator.execute(OTHERS)
            last = await soon(session.submit("last", "x"))
            assert (await soon(last.result())).text == "hello x"
            await until(host.beating, "the heart beats on")
            assert host is runtime.execution.host and host.alive()
            assert few.taken() <= 5, "two lanes, a reader, a lifeline, hints"
    assert few.taken() == 0, "everything was given back"
    await operator.close()


class Stingy:
    """Has no connection free for a while."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.empty = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def lease(self) -> Any:
        self.asked += self.empty
        if self.empty:
            raise LedgerUnavailable("nothing free", where="database", next_step="give it more")
        return await self._source.lease()


@pytest.mark.report("U97")
@pytest.mark.capability("G2.3")
async def test_hints_and_the_lock_come_back_after_the_pool_had_none_free_for_them(
    url: str,
) -> None:
    """Whoever shares the pool took the place of what was lost, and gives it back later."""
    stingy: Any = Stingy(source_of(url))
    hints, ringing = PostgresWakeups(stingy, "x"), PostgresWakeups(source_of(url), "x")
    operator = await asyncpg.connect(url)
    await hints.open()
    lifeline = LoopLifeline("a-host", stingy)
    await lifeline.open()
    heard: list[str] = []
    hints.listen("a", heard.append)
    stingy.empty = True
    await operator.execute(OTHERS)
    await until(lambda: stingy.asked >= 4, "both looked more than once")
    stingy.empty = False
    await ringing.open()

    async def ring() -> None:
        while not heard:
            ringing.ring("a")
            await asyncio.sleep(0.01)

    async with running(ring()):
        await until(lambda: heard, "it hears again")
    held = "select count(*) from pg_locks where locktype = 'advisory' and granted"
    async with asyncio.timeout(20):
        while not await operator.fetchval(held):
            await asyncio.sleep(0.01)
    await lifeline.drop()
    await hints.aclose()
    await ringing.aclose()
    await operator.close()


async def _traffic(ledger: PostgresLedger, name: str) -> LedgerUnavailable:
    """Work without a pause, until it is refused."""
    for number in range(100_000):
        try:
            await ledger.commit(put, f"{name}.{number}")
            await ledger.read(all_rows)
        except LedgerUnavailable as error:
            return error
    raise AssertionError("it was never refused")


@pytest.mark.report("U92")
@pytest.mark.capability("G2.3")
@pytest.mark.parametrize("round", range(10))
async def test_closing_in_the_middle_of_traffic_gives_everything_back(
    few: Given, round: int
) -> None:
    ledger = await open_postgres(few.value, SCHEMA, clock=SystemClock(), create=True)
    work = [asyncio.ensure_future(_traffic(ledger, f"{n}")) for n in range(8)]
    await until(lambda: ledger.commits >= 3 + round, "it is busy")
    await soon(ledger.close())
    for refused in await soon(asyncio.gather(*work)):
        assert "closed by this process" in str(refused)
    with pytest.raises(LedgerUnavailable, match="closed by this process"):
        await ledger.read(all_rows)
    with pytest.raises(LedgerUnavailable, match="closed by this process"):
        await ledger.commit(put, "late")
    assert few.taken() == 0, "everything was given back"


class Canceller:
    """Cancels a task where it asks the driver for the n-th time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.at = 0
        self.task: asyncio.Task[Any] | None = None
        for name in CALLS:
            monkeypatch.setattr(asyncpg.Connection, name, self._wrapped(name))

    def _wrapped(self, name: str) -> Any:
        plain: Any = getattr(asyncpg.Connection, name)

        async def call(connection: Any, *values: Any, **named: Any) -> Any:
            if self.task is not None and asyncio.current_task() is self.task:
                self.asked += 1
                if self.asked == self.at:
                    self.task.cancel()
            return await plain(connection, *values, **named)

        return call

    async def run(self, work: Any, at: int) -> bool:
        """Whether the work ended before it asked so often."""
        self.asked, self.at = 0, at
        self.task = task = asyncio.ensure_future(work)
        with suppress(asyncio.CancelledError):
            await soon(task)
        self.task = None
        return not task.cancelled()


async def _live(of: Any) -> None:
    async with await PostgresBackend.open(of) as backend:
        lifeline = await backend.liveness.take("a-host")
        await lifeline.drop()


@pytest.mark.report("U93")
@pytest.mark.report("U98")
async def test_a_life_that_is_cancelled_at_any_question_takes_no_connection(
    few: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From opening to closing; what it has in hand at that moment is given back or dropped."""
    await _live(few.value)
    canceller = Canceller(monkeypatch)
    at = 1
    while not await canceller.run(_live(few.value), at):
        await until(lambda: few.taken() == 0, "all was given back")
        at += 1
    assert at > 20, "it was cancelled at each of a good many questions"


@pytest.mark.report("U93")
async def test_a_life_that_is_cancelled_leaves_no_session_and_no_thread(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = await asyncpg.connect(url)
    others = set(threading.enumerate())
    await _live(url)
    canceller = Canceller(monkeypatch)
    at = 1
    while not await canceller.run(_live(url), at):
        at += 1
    assert at > 20, "it was cancelled at each of a good many questions"
    left = [each.name for each in threading.enumerate() if each not in others]
    assert "nerve-lifeline" not in left
    count = "select count(*) from pg_stat_activity where datname = current_database()"
    async with asyncio.timeout(20):
        while await look.fetchval(count) > 1:
            await asyncio.sleep(0.01)
    await look.close()
