"""A large ledger is no slower than a small one: plans, times in ratio, memory and bytes written."""

import asyncio
import gc
import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import pytest

import nerve.brain
from nerve.brain.agents.context import Context
from nerve.brain.handles import Session
from nerve.brain.ledger.definitions import Offer, offer
from nerve.brain.ledger.inquiries import Inquire, Patience, anything_due, inquire
from nerve.brain.ledger.repair import stuck
from nerve.brain.ledger.schema import SCHEMA
from nerve.brain.ledger.sessions import OpenSession, open_session
from nerve.brain.ledger.step_unit import Verdict
from nerve.common.sql import Statement, Tx, sql
from nerve.common.sql.migrate import ddl
from nerve.protocol.content import Message
from support.brain_cell import KEY, QUICK, Cell, brain_cell, function, hello, opened, rows, write
from support.brain_desk import DEFINITION, ID, Desk
from support.fake_hands import FakeHands
from support.waiting import soon

V = TypeVar("V")
# What is read by a person or a scrape now and then, and may look at everything.
COLD = {"census", "definitions:AGENTS", "definitions:NEWEST", "definitions:OF_VERSION"}
GROWING = "thread|turn|intent|event|message|journal|run|step|receipt|request|session|observation"


def statements() -> Iterator[tuple[str, Statement]]:
    for found in pkgutil.walk_packages(nerve.brain.__path__, "nerve.brain."):
        if "migrations" in found.name:
            continue
        for name, value in vars(importlib.import_module(found.name)).items():
            place = f"{found.name.rpartition('.')[2]}:{name}"
            if isinstance(value, Statement) and not COLD & {place, place.partition(":")[0]}:
                yield place, value


@pytest.fixture(scope="module")
def fresh() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in ddl(SCHEMA):
        connection.execute(statement)
    yield connection
    connection.close()


@pytest.mark.parametrize(("name", "statement"), list(statements()))
def test_no_statement_walks_a_table_that_grows(
    fresh: sqlite3.Connection, name: str, statement: Statement
) -> None:
    """A partial index may be walked: it holds only what is still to be done."""
    aliases = dict(re.findall(rf"\b(?:from|join) ({GROWING}) ([a-z])\b", statement.text))
    tables = {*GROWING.split("|"), *aliases.values()}
    plan = fresh.execute(
        f"explain query plan {statement.sqlite}", [None] * len(statement.names)
    ).fetchall()
    for step in (str(row[3]) for row in plan):
        walked = re.match(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?$", step)
        if walked is None or walked.group(1) not in tables:
            continue
        index = walked.group(2)
        assert index is not None, step
        (made,) = fresh.execute("select sql from sqlite_master where name = ?", [index]).fetchone()
        newest_first = "order by" in statement.text and "limit" in statement.text
        assert newest_first or (made is not None and " WHERE " in made), step


BACKLOG = """
with recursive n(i) as (select 1 union all select i + 1 from n where i < {count})
insert into {into} {select} from n
"""
ROWS = {
    "thread (id, session, name, definition, state, phase, head, next_ordinal, ready_at, token,"
    " position, digest, created_at)": "select 'acme/s-1/w' || i, 'acme/s-1', 'w' || i, '{id}',"
    " 'OPEN', 'WAITING', printf('t%026d', i), 2, 1, 1, 1, 'd', 1",
    "turn (id, session, thread, ordinal, request_id, phase, input, iterations, runs, calls, said,"
    " open_count, wait_mode, pause_intent, pause_revision, retry_count, priority, created_at)": "select printf('t%026d', i), 'acme/s-1', 'acme/s-1/w' || i, 1, 'r' || i, 'WAITING', '{{}}', 1,"
    " 1, 1, 1, 1, 'ALL', 0, 0, 0, 0, 1",
    "intent (execution, turn, thread, session, ordinal, call_id, kind, tool, route, arguments,"
    " command, codec, state, outcome, effect, attempt, sequence, origin_step, requested_at,"
    " inquiries, next_inquiry_at, settled)": "select printf('t%026d.x1', i), printf('t%026d', i),"
    " 'acme/s-1/w' || i, 'acme/s-1', 1, 'c', 'remote', 'echo', 'hands', x'7b7d', x'7b7d', 'plain',"
    " 'OPEN', 'ADMITTED', 'none', 0, 1, 's', 1, 0, {due}, 0",
    "event (session, sequence, type, body, created_at)": "select 'acme/s-1', i + 1000, 'x.a.b',"
    " '{{}}', 1",
}


def load(desk: Desk, count: int) -> None:
    """`count` Turns that wait for their tools."""
    for into, select in ROWS.items():
        due = desk.now() + 200_000
        text = BACKLOG.format(count=count, into=into, select=select.format(id=ID, due=due))
        write(desk.backend, text)
    write(desk.backend, f"update session set sequence = {count + 1000}")


async def desk_over(cell: Cell, count: int) -> Desk:
    desk = Desk(await cell.backend())
    await desk.ledger.commit(offer, Offer(definition=DEFINITION, bindings={}, now=1))
    unit = OpenSession(key=KEY, agent="agent", version=None, now=desk.now())
    await desk.ledger.commit(open_session, unit)
    load(desk, count)
    return await desk.open(ID)


async def due(tx: Tx) -> bool:
    return await anything_due(tx, 2)


class Round:
    """Each thing that a Brain does all the time, timed over one ledger."""

    def __init__(self, desk: Desk, session: Session) -> None:
        self.desk = desk
        self.session = session
        self.hands = FakeHands()
        self.taken: dict[str, list[float]] = {}

    async def note(self, what: str, work: Callable[[], Awaitable[V]]) -> V:
        began = perf_counter()
        done = await work()
        self.taken.setdefault(what, []).append(perf_counter() - began)
        return done

    async def run(self, n: int) -> None:
        desk = self.desk
        thread = await self.session.open_thread(f"n{n}")
        await self.note("submit", partial(thread.submit, f"r{n}", "x"))
        (claimed,) = await self.note("claim", partial(desk.claim, ID))
        (execution,) = await desk.park(claimed, next_inquiry_at=1)
        await self.note("anything due", partial(desk.ledger.read, due))
        unit = Inquire(
            messages=desk.messages,
            patience=Patience(silence_ms=1000, first_ms=10**9, most_ms=10**9),
            host=desk.host.id,
            relay=None,
            limit=500,
            now=desk.now(),
        )
        await self.note("inquire", partial(desk.ledger.commit, inquire, unit))
        await self.note("repair", partial(desk.ledger.read, stuck))
        delivery = partial(desk.deliver, self.hands.update(execution), claiming=ID)
        delivered = await self.note("deliver", delivery)
        assert delivered.claimed is not None
        verdict = await self.note("finish", partial(desk.finish, delivered.claimed))
        assert verdict is Verdict.COMMITTED


@pytest.mark.report("U48")
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.external)])
async def test_a_hundred_thousand_waiting_turns_slow_nothing_down(
    tmp_path: Path, kind: str
) -> None:
    async with (
        brain_cell(tmp_path / "few", kind=kind) as few,
        brain_cell(tmp_path / "many", kind=kind) as many,
    ):
        rounds: list[Round] = []
        for cell, count in ((few, 10), (many, 100_000)):
            desk = await desk_over(cell, count)
            rounds.append(Round(desk, (await cell.runtime()).get_session(KEY)))
        # In turns, so that whatever else this machine does strikes both alike.
        for n in range(40):
            for each in rounds:
                await each.run(n)
        small, large = (each.taken for each in rounds)
        for what, times in large.items():
            # A fifth of a millisecond is the noise of a shared core, not of the backlog.
            ratio = median(times) / (median(small[what]) + 0.0002)
            assert ratio <= 3, f"{what}: {ratio:.1f} times as long with 100,000 waiting Turns"
        for each in rounds:
            await each.desk.hosts.close()


@pytest.mark.report("U48")
async def test_waiting_turns_cost_their_host_no_memory(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(hello), hands=hands)
    session = await opened(runtime)
    desk = Desk(await cell.backend())

    def held() -> int:
        gc.collect()
        return len(gc.get_objects())

    await soon((await session.submit("warm", "x")).result())
    before = held()
    load(desk, 20_000)
    for n in range(5):
        thread = await session.open_thread(f"n{n}")
        await soon((await thread.submit(f"r{n}", "x")).result())
    assert held() - before < 2_000


@pytest.mark.rule(23)
@pytest.mark.report("U55")
async def test_bytes_written_per_turn_do_not_grow_with_the_thread(cell: Cell) -> None:
    """Checkpoints are appended: the fiftieth Turn writes what the fifth wrote."""

    async def body(ctx: Context, input: Message) -> str:
        return "x" * 2000

    runtime = await cell.runtime(function(body))
    session = await opened(runtime)
    pages: list[int] = []

    kept = sql("select sum(length(entries) + length(state)) as size from journal")
    for n in range(60):
        await soon((await session.submit(f"r{n}", "y" * 500)).result())
        pages.append(int((await rows(runtime, kept))[0]["size"]))
    grown = [after - before for before, after in zip(pages, pages[1:], strict=False)]
    assert max(grown[-10:]) <= 1.05 * max(grown[:10])


@pytest.mark.report("U95")
async def test_two_thousand_waiters_keep_no_heartbeat_waiting(cell: Cell) -> None:
    gate = asyncio.Event()

    async def body(ctx: Context, input: Message) -> str:
        await gate.wait()
        return "done"

    # Waiters look again at each scan as they do in production.
    settings = replace(QUICK, scan_seconds=1.0, lease_seconds=10.0)
    runtime = await cell.runtime(function(body), settings=settings)
    session = await opened(runtime)
    turn = await session.submit("r", "x")
    waiters = [asyncio.ensure_future(turn.result()) for _ in range(2000)]
    assert runtime.execution is not None
    host = runtime.execution.host
    latest = 0.0
    loop = asyncio.get_running_loop()
    until = loop.time() + 3.0
    while loop.time() < until:
        await asyncio.sleep(0.05)
        latest = max(latest, host.beat_late_seconds)
        assert host.alive()
    assert latest < settings.lease_seconds / 3
    gate.set()
    assert {result.text for result in await soon(asyncio.gather(*waiters))} == {"done"}
