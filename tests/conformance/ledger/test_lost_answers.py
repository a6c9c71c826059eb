"""A transaction is durable and its answer is lost inside the process: scans find what nobody runs."""

import asyncio

import pytest

from nerve.brain.agents.context import Context
from nerve.brain.handles import Thread, Turn
from nerve.common import faults
from nerve.common.sql import sql
from nerve.protocol.content import Message
from support.brain_cell import Cell, calling, catalog, function, hello, opened, rows
from support.fake_hands import FakeHands
from support.waiting import soon

POINTS = [
    "brain.claim.after_commit",
    "brain.claim.before_commit",
    "brain.advance.after_commit",
    "brain.advance.before_commit",
    "brain.deliver.before_commit",
    "sql.before_commit",
    "sql.after_commit",
    "sql.in_doubt",
    "sql.begin",
]


@pytest.mark.rule(7)
@pytest.mark.rule(8)
@pytest.mark.parametrize("hit", [1, 2, 3, 5])
@pytest.mark.parametrize("point", POINTS)
async def test_a_lost_answer_strands_no_turn_and_repeats_no_call(
    cell: Cell, point: str, hit: int
) -> None:
    hands = FakeHands(auto=lambda command: "ok")
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    threads = [await session.open_thread(f"t{n}") for n in range(4)]
    with faults.armed(f"{point}=raise@{hit}"):
        for thread in threads:
            await insisting(thread)
        turns = [await insisting(thread) for thread in threads]
        for turn in turns:
            assert (await soon(turn.result())).text == "ok"
    assert len(hands.executions) == 4


@pytest.mark.rule(7)
async def test_a_delivery_that_claimed_and_was_forgotten_is_taken_up_by_a_scan(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r", "x")
    (execution,) = await hands.asked()
    with faults.armed("brain.deliver.after_commit=raise@1"), pytest.raises(faults.InjectedFault):
        await hands.succeed(execution)
    assert (await soon(turn.result())).text == "done"
    assert "HANDED_OVER" in {run.state for run in await turn.list_runs()}


@pytest.mark.rule(7)
async def test_a_task_that_was_lost_inside_the_process_is_found(cell: Cell) -> None:
    started = asyncio.Event()

    async def body(ctx: Context, input: Message) -> str:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return "done"

    runtime = await cell.runtime(function(body))
    turn = await (await opened(runtime)).submit("r", "x")
    await soon(started.wait())
    (task,) = [each for each in asyncio.all_tasks() if each.get_name() == f"turn:{turn.id}"]
    task.cancel()
    assert (await soon(turn.result())).text == "done"
    assert [run.state for run in await turn.list_runs()] == ["HANDED_OVER", "FINISHED"]


async def test_a_start_that_fails_leaves_nothing_behind(cell: Cell) -> None:
    """No host row, no lock, no thread: the next start is as the first."""
    first = await cell.runtime(function(hello), started=False)
    lost = "common.lease.register.after_commit=raise@1"
    with faults.armed(lost), pytest.raises(faults.InjectedFault):
        await first.start()
    assert first.execution is None
    await first.start()
    turn = await (await opened(first)).submit("r", "x")
    assert (await soon(turn.result())).text == "hello x"
    assert first.execution is not None
    live = sql("select id from host where state = 'LIVE'")
    async with asyncio.timeout(10):
        while [row["id"] for row in await rows(first, live)] != [first.execution.host.id]:
            await asyncio.sleep(0.02)


async def insisting(thread: Thread) -> Turn:
    """What a client does: the same request again until it is answered."""
    while True:
        try:
            return await thread.submit(f"r-{thread.key.thread}", "x")
        except faults.InjectedFault:
            await asyncio.sleep(0)
