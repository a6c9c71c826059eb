"""Sessions and Threads: made once, closed only when idle, beside each other and in order."""

import asyncio

import pytest

from nerve.brain.agents.context import Context
from nerve.common.sql import sql
from nerve.protocol.content import Message
from nerve.protocol.errors import (
    Conflict,
    WrongState,
)
from support.brain_cell import KEY, Cell, Pair, catalog, function, hello, opened
from support.waiting import soon, until

TURNS = sql("select id from turn order by id")
EVENTS = sql("select type, sequence from event order by sequence")
EVERYTHING = [
    sql(f"select count(*) as n from {table}") for table in ("turn", "event", "message", "request")
]


@pytest.mark.capability("A2.1")
@pytest.mark.capability("A2.2")
@pytest.mark.capability("A2.3")
async def test_a_session_comes_with_its_main_thread_and_once(pair: Pair) -> None:
    one, other = pair
    before = one.ledger.commits
    await opened(one)
    assert one.ledger.commits == before + 1
    work = [opened(runtime) for runtime in pair for _ in range(4)]
    assert {session.key for session in await asyncio.gather(*work)} == {KEY}
    page = await (await opened(other)).events()
    assert [event.type for event in page.events] == ["session.created", "thread.created"]
    await (await opened(one)).close()
    page = await (await opened(other)).events()
    assert [event.type for event in page.events][2:] == ["thread.closed", "session.closed"]


async def test_a_session_of_another_agent_is_a_conflict(pair: Pair, cell: Cell) -> None:
    await cell.runtime(function(hello, "second"))
    await opened(pair[0])
    with pytest.raises(Conflict, match="belongs to the agent agent"):
        await opened(pair[1], "second")


@pytest.mark.capability("A6.1")
async def test_closing_with_unfinished_turns_is_refused_and_cancels_nothing(pair: Pair) -> None:
    session = await opened(pair[0])
    thread = await session.open_thread("side")
    turn = await thread.submit("r1", "hi")
    for closing in (session.close(), thread.close()):
        with pytest.raises(WrongState, match=f"unfinished Turns: {turn.id}"):
            await closing
    status = await turn.status()
    assert (status.phase, status.cancel_requested) == ("QUEUED", False)
    await session.thread().close()
    with pytest.raises(WrongState, match="closed"):
        await session.submit("r2", "hi")
    await turn.cancel("c1")
    await thread.close()
    await thread.close()
    await session.close()
    with pytest.raises(WrongState, match="closed"):
        await session.open_thread("late")


@pytest.mark.rule(9)
async def test_close_against_submit_leaves_no_turn_in_a_closed_session(pair: Pair) -> None:
    one, other = pair
    outcomes: set[str] = set()
    for round in range(60):
        name = f"s-{round}"
        session, same = await opened(one, name=name), await opened(other, name=name)
        closing, submitting = session.close(), same.submit("r", "hi")
        first = [closing, submitting] if round % 2 else [submitting, closing]
        answers = await asyncio.gather(*first, return_exceptions=True)
        closed, admitted = answers if round % 2 else reversed(answers)
        refused = [isinstance(each, WrongState) for each in (closed, admitted)]
        assert sorted(refused) == [False, True], answers
        outcomes.add("closed" if refused[1] else "admitted")
    assert outcomes == {"closed", "admitted"}


@pytest.mark.report("U13")
async def test_submit_beside_a_starting_runtime_makes_one_run(cell: Cell) -> None:
    ran: list[str] = []

    async def body(ctx: Context, input: Message) -> str:
        ran.append(ctx.turn)
        return "done"

    first = await cell.runtime(function(body))
    api = await cell.runtime()
    session = await opened(api)
    await first.close()
    for round in range(30):
        runtime = await cell.runtime(function(body), started=False)
        threads = [await session.open_thread(f"t{round}.{n}") for n in range(5)]
        work = [thread.submit(f"r{round}.{n}", "x") for n, thread in enumerate(threads)]
        turns = (await asyncio.gather(asyncio.gather(*work), runtime.start()))[0]
        for turn in turns:
            await soon(turn.result())
        await runtime.close()
    assert len(ran) == len(set(ran)) == 150


@pytest.mark.report("U103")
@pytest.mark.capability("A3.1")
@pytest.mark.capability("A3.2")
async def test_threads_have_their_own_history_and_run_beside_each_other(cell: Cell) -> None:
    at_once, most = 0, 0
    gate = asyncio.Event()

    async def body(ctx: Context, input: Message) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await gate.wait()
        at_once -= 1
        said = [str(entry["text"]) for entry in ctx.history()]
        return f"{input.text}|{','.join(said)}"

    runtime = await cell.runtime(function(body))
    session = await opened(runtime)
    threads = [await session.open_thread(f"t{n}") for n in range(20)]
    turns = [
        await thread.submit(f"{n}.{round}", f"{n}.{round}")
        for round in range(3)
        for n, thread in enumerate(threads)
    ]
    await until(lambda: at_once == 20, "all Threads run at once")
    gate.set()
    answers = [(await soon(turn.result())).text for turn in turns]
    assert most == 20
    for n in range(20):
        mine = [answer for answer in answers if answer.startswith(f"{n}.")]
        assert mine[0] == f"{n}.0|"
        assert mine[2].startswith(f"{n}.2|{n}.0,{mine[0]},{n}.1,")


@pytest.mark.capability("A3.3")
@pytest.mark.capability("A3.4")
async def test_inside_a_thread_turns_run_in_admission_order_behind_a_waiting_head(
    cell: Cell,
) -> None:
    from support.fake_hands import FakeHands

    hands = FakeHands()
    ran: list[str] = []

    async def body(ctx: Context, input: Message) -> str:
        ran.append(input.text)
        if input.text == "0":
            await ctx.call("echo", text="x")
        return "done"

    runtime = await cell.runtime(function(body, tools=catalog()), hands=hands)
    session = await opened(runtime)
    turns = [await session.submit(f"r{n}", f"{n}") for n in range(6)]
    (execution,) = await hands.asked()
    status = await turns[3].status()
    assert status.behind == turns[0].id
    assert ran == ["0"]
    await hands.succeed(execution)
    for turn in turns:
        await soon(turn.result())
    assert ran == ["0", "0", "1", "2", "3", "4", "5"]
    listed = await session.thread().list_turns()
    assert [item.turn for item in listed] == [turn.id for turn in turns]
