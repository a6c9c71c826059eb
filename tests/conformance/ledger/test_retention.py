"""What is settled goes after its time, and nothing that anybody still needs goes with it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from nerve.brain import DurableRuntime, Turn
from nerve.brain.ledger import retention
from nerve.common.clock import SystemClock
from nerve.common.lease import FIRST_BEAT, REGISTER
from nerve.common.settings import Settings
from nerve.common.sql import Tx, law, sql
from nerve.common.sql.retention import Kind, Retention
from nerve.protocol.errors import BadInput
from nerve.protocol.execution import ExecutionState
from support.brain_cell import QUICK, Cell, Gate, calling, catalog, function, opened, rows, texts
from support.fake_hands import FakeHands

AT_ONCE = 1e-9
DETAILS = ("receipt", "intent", "step", "run")
NOW: Any = {
    name: AT_ONCE
    for name in (
        "keep_events_days",
        "keep_details_days",
        "keep_checkpoints_days",
        "keep_observations_days",
        "keep_quarantined_days",
        "keep_hosts_days",
    )
}
NEVER: Any = dict.fromkeys(NOW, 0.0)
QUIET = replace(QUICK, **NEVER)
"""The host's own walk removes nothing: the test's does."""


@law("test.register", keys=lambda unit: (unit,))
async def gone_host(tx: Tx, unit: str) -> None:
    """A host that was released long ago."""
    await tx.run(
        REGISTER,
        id=unit,
        role="brain",
        pid=1,
        started="x",
        boot="x",
        offers="{}",
        lease_ms=1,
        now=1,
    )
    await tx.run(FIRST_BEAT, id=unit)
    await tx.run(sql("update host set state = 'RELEASED', released_at = 1 where id = :id"), id=unit)


@law("test.set_aside", keys=lambda unit: (unit,))
async def set_aside(tx: Tx, unit: str) -> None:
    for number in (1, 2):
        await tx.run(
            sql(
                "insert into inbox (execution, sequence, state, reason, envelope, tries, next_at,"
                " received_at) values (:id, :number, 'QUARANTINED', 'x', :body, 1, 0, 1)"
            ),
            id=unit,
            number=number,
            body=b"x",
        )


@law("test.untold", keys=lambda unit: (unit,))
async def untold(tx: Tx, unit: str) -> None:
    await tx.run(sql("update intent set settled = 0 where turn = :id"), id=unit)


async def walk(runtime: DurableRuntime, settings: Settings) -> dict[str, int]:
    """One whole walk; how much of each kind went."""
    return await walked(runtime, retention.kinds(settings))


async def walked(runtime: DurableRuntime, kinds: list[Kind]) -> dict[str, int]:
    duty = Retention(runtime.ledger, kinds, clock=SystemClock(), interval_seconds=1)
    while await duty.run_once():
        pass
    return duty.removed


async def counted(runtime: DurableRuntime, *tables: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for table in tables:
        (row,) = await rows(runtime, sql(f"select count(*) as number from {table}"))
        found[table] = row["number"]
    return found


async def told(runtime: DurableRuntime) -> None:
    """Until Hands know of everything that was applied."""
    unsettled = sql("select 1 from intent where state = 'APPLIED' and settled = 0")
    async with asyncio.timeout(10):
        while await rows(runtime, unsettled):
            await asyncio.sleep(0.01)


async def finished(runtime: DurableRuntime, count: int = 3) -> list[Turn]:
    session = await opened(runtime)
    turns = [await session.submit(f"r{number}", f"say {number}") for number in range(count)]
    for turn in turns:
        await turn.result(10)
    await told(runtime)
    return turns


def hands() -> FakeHands:
    return FakeHands(auto=lambda command: command.arguments["text"])


@pytest.mark.capability("F10.1")
@pytest.mark.capability("F12.2")
async def test_history_lists_and_results_outlive_everything_that_goes(cell: Cell) -> None:
    agent = function(calling, tools=catalog())
    runtime = await cell.runtime(agent, hands=hands(), settings=QUIET)
    turns = await finished(runtime)
    session = await opened(runtime)
    history = await session.thread().history()
    listed = await session.thread().list_turns()
    page = await session.events()
    await runtime.ledger.commit(gone_host, "long-gone")
    await runtime.ledger.commit(set_aside, "an-execution")
    assert await walk(runtime, QUIET) == {}, "0 is for ever"
    gone = await walk(runtime, replace(QUIET, **NOW))
    assert gone["details"] == 3 and gone["hosts"] == 1 and gone["quarantined"] == 2
    assert await counted(runtime, *DETAILS, "event", "inbox") == dict.fromkeys(
        (*DETAILS, "event", "inbox"), 0
    )
    assert texts(await session.thread().history()) == texts(history) != []
    assert await session.thread().list_turns() == listed
    assert [(await turn.result(1)).output for turn in turns] != [None] * 3
    repeated = await session.submit("r0", "say 0")
    assert repeated.id == turns[0].id, "the same request is the same Turn"
    # A reader from the beginning, one that is up to date, and one that missed something.
    assert (await session.events()).cursor == page.high_watermark
    assert (await session.events(page.cursor)).events == []
    with pytest.raises(BadInput, match="were pruned"):
        await session.events("e1")
    assert [event async for event in turns[0].events()] == []
    assert await walk(runtime, replace(QUIET, **NOW)) == {}, "nothing is left to go"


@pytest.mark.capability("F10.1")
async def test_the_numbers_go_on_and_the_thread_lives_on(cell: Cell) -> None:
    agent = function(calling, tools=catalog())
    runtime = await cell.runtime(agent, hands=hands(), settings=QUIET)
    await finished(runtime)
    session = await opened(runtime)
    mark = (await session.events()).high_watermark
    await walk(runtime, replace(QUIET, **NOW))
    # A host that knows nothing of it yet reads the chain of checkpoints from its beginning.
    await runtime.close()
    other = await cell.runtime(agent, hands=hands(), settings=QUIET)
    turn = await (await opened(other)).submit("next", "say more")
    assert (await turn.result(10)).output is not None
    events = (await (await opened(other)).events(mark)).events
    assert [event.sequence for event in events] == list(
        range(int(mark[1:]) + 1, int(mark[1:]) + 1 + len(events))
    )
    assert events


@pytest.mark.capability("F10.1")
async def test_nothing_of_an_unfinished_turn_goes(cell: Cell) -> None:
    """Neither its own events nor later ones of the Session, nor what its next Run reads."""
    agent = function(calling, tools=catalog())
    silent = FakeHands()
    runtime = await cell.runtime(agent, hands=silent, settings=QUIET)
    session = await opened(runtime)
    waiting = await session.submit("r", "say it")
    (execution,) = await silent.asked()
    mark = (await session.events()).high_watermark
    before = await counted(runtime, *DETAILS, "journal", "event")
    await walk(runtime, replace(QUIET, **NOW))
    assert await counted(runtime, *DETAILS, "journal") == {
        name: before[name] for name in (*DETAILS, "journal")
    }
    kept = (await session.events()).events
    assert {event.turn for event in kept} >= {waiting.id}
    assert kept[-1].cursor == mark
    await silent.succeed(execution, "said")
    assert (await waiting.result(10)).output is not None


@pytest.mark.capability("F10.1")
async def test_what_hands_were_not_told_and_what_nobody_knows_stays(cell: Cell) -> None:
    agent = function(calling, tools=catalog())
    silent = FakeHands()
    runtime = await cell.runtime(agent, hands=silent, settings=QUIET)
    session = await opened(runtime)
    turn = await session.submit("r", "say it")
    (execution,) = await silent.asked()
    await silent.send(silent.update(execution, ExecutionState.UNKNOWN, reason="its host died"))
    unknown = sql("select 1 from intent where outcome = 'UNKNOWN'")
    async with asyncio.timeout(10):
        while not await rows(runtime, unknown):
            await asyncio.sleep(0.01)
    await turn.cancel("c")
    await walk(runtime, replace(QUIET, **NOW))
    assert (await counted(runtime, "intent"))["intent"] == 1


@pytest.mark.capability("F10.1")
async def test_a_call_stays_until_hands_were_told_that_it_was_applied(cell: Cell) -> None:
    agent = function(calling, tools=catalog())
    runtime = await cell.runtime(agent, hands=hands(), settings=QUIET)
    (turn,) = await finished(runtime, 1)
    await runtime.ledger.commit(untold, turn.id)
    await walk(runtime, replace(QUIET, keep_details_days=AT_ONCE))
    assert (await counted(runtime, "intent", "run")) == {"intent": 1, "run": 2}
    await told(runtime)
    await walk(runtime, replace(QUIET, keep_details_days=AT_ONCE))
    assert (await counted(runtime, "intent", "run")) == {"intent": 0, "run": 0}


@pytest.mark.capability("F10.1")
async def test_checkpoints_go_with_a_closed_thread_only(cell: Cell) -> None:
    agent = function(calling, tools=catalog())
    runtime = await cell.runtime(agent, hands=hands(), settings=QUIET)
    await finished(runtime, 1)
    session = await opened(runtime)
    side = await session.open_thread("side", agent="agent")
    await (await side.submit("s", "say")).result(10)
    await told(runtime)
    await side.close()
    assert (await walk(runtime, replace(QUIET, **NOW)))["checkpoints"] == 1
    left = await rows(runtime, sql("select distinct thread from journal"))
    assert [row["thread"] for row in left] == [session.thread().key.id]
    assert len(await side.history()) > 0


@pytest.mark.capability("F10.1")
async def test_many_rows_go_in_small_steps_beside_the_traffic(cell: Cell) -> None:
    gate = Gate()
    runtime = await cell.runtime(function(gate), settings=QUIET)
    gate.open.set()
    session = await opened(runtime)
    for number in range(1205):
        await runtime.ledger.commit(gone_host, f"gone-{number:05d}")
    sizes: list[int] = []
    kinds = [kind for kind in retention.kinds(replace(QUIET, **NOW)) if kind.name == "hosts"]
    duty = Retention(runtime.ledger, kinds, clock=SystemClock(), interval_seconds=1)
    more = True
    while more:
        more = await duty.run_once()
        sizes.append(duty.removed.get("hosts", 0))
        turn = await session.submit(f"r{len(sizes)}", "x")
        assert (await turn.result(10)).output is not None
    # The one that lives is walked past in the first or the last step.
    assert len(sizes) == 3 and sizes[0] <= 500 and sizes[1] - sizes[0] <= 500
    assert sizes[-1] == 1205
    assert await counted(runtime, "heartbeat") == {"heartbeat": 1}


@pytest.mark.capability("F10.1")
async def test_hosts_walk_by_themselves(cell: Cell) -> None:
    settings = replace(QUIET, **NOW, retention_seconds=0.05)
    runtime = await cell.runtime(
        function(calling, tools=catalog()), hands=hands(), settings=settings
    )
    await finished(runtime)
    async with asyncio.timeout(20):
        while any((await counted(runtime, *DETAILS, "event")).values()):
            await asyncio.sleep(0.02)


def test_each_table_has_a_rule() -> None:
    """Every table of both ledgers either has a kind that removes from it, or its reason to stay."""
    from nerve.brain.ledger.tables import metadata as brain
    from nerve.hands.ledger import retention as of_hands
    from nerve.hands.ledger.tables import metadata as hands_tables

    stays = {
        "brain": {
            "definition": "one a version of an agent",
            "hands_ledger": "one a route",
            "message": "history",
            "object": "collected once nothing refers to it",
            "meta": "a few",
            "outbox": "goes once the broker has it",
            "refused": "bounded by count",
            "request": "lives as long as its Session",
            "session": "a user's",
            "thread": "a user's",
            "turn": "a user's",
            "writer": "one short row a process that was killed",
        },
        "hands": {
            "barred": "goes when its command has expired",
            "execution": "goes once it was settled and no copy can come",
            "meta": "a few",
            "object": "collected once nothing refers to it",
            "outbox": "goes once the broker has it",
            "output_page": "goes with its execution",
            "refused": "bounded by count",
            "report": "goes with its execution",
            "writer": "one short row a process that was killed",
        },
    }
    for room, tables, kinds in (
        ("brain", brain(), retention.kinds(Settings())),
        ("hands", hands_tables(), of_hands.kinds(Settings())),
    ):
        texts = " ".join(each.text for kind in kinds for each in kind.remove)
        removed = {name for name in tables.tables if f"delete from {name} " in texts}
        assert set(tables.tables) - removed - set(stays[room]) == set()
        assert not removed & set(stays[room])
