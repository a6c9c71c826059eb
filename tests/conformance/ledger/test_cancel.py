"""Cancelling: a queued Turn ends at once, an active one settles, and every race has one end."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from nerve.brain.agents.context import Context
from nerve.brain.handles import Session
from nerve.brain.ledger.cancel import Cancelled, cancel
from nerve.brain.ledger.claim import Claimed
from nerve.brain.ledger.step_unit import Verdict
from nerve.brain.state.recovery import RecoveryPolicy
from nerve.common.sql import sql
from nerve.protocol.content import Message
from nerve.protocol.controls import CancelExecution
from nerve.protocol.errors import WrongState
from nerve.protocol.events import PublicEvent
from nerve.protocol.execution import ExecutionState
from support.brain_cell import (
    KEY,
    QUICK,
    Cell,
    calling,
    catalog,
    function,
    opened,
    rows,
    write,
)
from support.brain_desk import ID, Desks
from support.fake_hands import FakeHands
from support.waiting import running, soon, until

S = ExecutionState

THREADS = sql("select phase, host, ready_at from thread order by id")
TURNS = sql("select phase, open_count from turn order by id")
INTENTS = sql("select execution, state, outcome, sequence, inquiries from intent order by ordinal")
OBSERVED = sql("select kind from observation order by id")
INBOX = sql("select execution, sequence, state, reason from inbox order by sequence")
REFUSED = sql("select code, reason, head from refused order by id")
OUTBOX = sql("select id from outbox order by id")


@pytest.mark.capability("B4.1")
async def test_a_queued_turn_ends_at_once(desks: Desks, session: Session) -> None:
    one, _ = desks
    turns = [await session.submit(f"r{n}", "x") for n in range(3)]
    for n in (1, 0):
        assert (await turns[n].cancel(f"c{n}")).ended
        assert (await turns[n].status()).phase == "CANCELLED"
    (claimed,) = await one.claim(ID)
    assert claimed.turn == turns[2].id


@pytest.mark.capability("B4.2")
@pytest.mark.law(11)
async def test_an_active_turn_settles_its_tools_first_and_says_so(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    turn = await session.submit("r1", "x")
    (execution,) = await hands.asked()
    verdict = await turn.cancel("c1")
    assert not verdict.ended
    status = await turn.status()
    assert (status.phase, status.cancel_requested) == ("SETTLING", True)
    assert status.reasons == ["SETTLING", "TOOLS"]
    assert "A cancel was requested and is not confirmed" in " ".join(status.why)
    await until(lambda: len(hands.controls_of(CancelExecution)) >= 2, "the cancel is repeated")
    await hands.send(hands.not_found(execution))
    assert (await turn.status()).phase == "SETTLING"
    await hands.send(hands.update(execution, S.CANCELLED))
    assert (await soon(turn.result())).phase == "CANCELLED"
    events = (await session.events(limit=1000)).events
    kinds = [event.type for event in events if event.turn == turn.id]
    assert kinds[-2:] == ["tool.applied", "turn.cancelled"]
    following = await session.submit("r2", "y")
    await hands.succeed((await hands.asked(2))[1], "fine")
    assert (await soon(following.result())).text == "fine"


@pytest.mark.capability("B4.2")
async def test_an_unknown_outcome_keeps_a_cancelled_turn_until_it_is_known(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await turn.cancel("c1")
    await hands.send(hands.update(execution, S.UNKNOWN, reason="who knows"))
    status = await turn.status()
    assert status.reasons == ["SETTLING", "UNKNOWN_OUTCOME"]
    await hands.send(hands.update(execution, S.FAILED, sequence=2, snapshot=True))
    assert (await soon(turn.result())).phase == "CANCELLED"


@pytest.mark.capability("B4.3")
async def test_cancel_does_not_wait_for_a_backoff(cell: Cell) -> None:
    async def body(ctx: Context, input: Message) -> str:
        raise ConnectionError("down")

    slow = replace(QUICK, scan_seconds=0.05)
    policy = RecoveryPolicy(retries=3, first_seconds=1000.0, most_seconds=1000.0)
    runtime = await cell.runtime(function(body), settings=slow, policy=policy)
    turn = await (await opened(runtime)).submit("r1", "x")
    async with asyncio.timeout(10):
        while (await turn.status()).reasons != ["BACKOFF"]:
            await asyncio.sleep(0.005)
    await turn.cancel("c1")
    assert (await soon(turn.result())).phase == "CANCELLED"


@pytest.mark.report("U68")
async def test_a_running_turn_is_stopped_at_its_next_boundary(cell: Cell) -> None:
    """Cancelled between two steps of its body: what follows is not begun, the history is whole."""
    begun: list[str] = []
    first = asyncio.Event()

    async def body(ctx: Context, input: Message) -> str:
        async def step(name: str) -> str:
            begun.append(name)
            if name == "one":
                first.set()
                await asyncio.sleep(0.05)
            return name

        await ctx.step("one", step, "one")
        await ctx.step("two", step, "two")
        return "done"

    runtime = await cell.runtime(function(body))
    session = await opened(runtime)
    turn = await session.submit("r1", "x")
    await soon(first.wait())
    await turn.cancel("c1")
    assert (await soon(turn.result())).phase == "CANCELLED"
    assert begun == ["one"]


@pytest.mark.report("U66")
@pytest.mark.report("U99")
@pytest.mark.rule(9)
async def test_cancel_against_completion_has_one_end_and_receipts_agree(
    desks: Desks, session: Session
) -> None:
    one, other = desks
    threads = [await session.open_thread(f"t{n}") for n in range(100)]
    ends: set[str] = set()

    async def race(claimed: Claimed, number: int) -> tuple[Verdict, Cancelled | None]:
        unit = other.cancelling(KEY.id, claimed.turn, f"c{claimed.turn}")
        finishing = asyncio.ensure_future(one.finish(claimed))
        # From before the end is queued to well after it stands.
        for _ in range(number % 12):
            await asyncio.sleep(0)
        (receipt,) = await asyncio.gather(other.ledger.submit(cancel, unit), return_exceptions=True)
        return await finishing, receipt if isinstance(receipt, Cancelled) else None

    for round in range(20):
        await asyncio.gather(*(thread.submit(f"{round}.{thread.key}", "x") for thread in threads))
        owned = await one.claim(ID)
        assert len(owned) == 100
        for few in (owned[:10], owned[10:40], owned[40:]):
            answers = await asyncio.gather(*(race(each, n) for n, each in enumerate(few)))
            for claimed, (verdict, receipt) in zip(few, answers, strict=True):
                assert verdict is Verdict.COMMITTED
                ends.add("too late" if receipt is None else "requested")
                if receipt is not None:
                    again = await other.cancel(KEY.id, claimed.turn, f"c{claimed.turn}")
                    assert again.ended is receipt.ended is False
    assert ends == {"too late", "requested"}
    assert {row["phase"] for row in await rows(session.runtime, TURNS)} == {"COMPLETED"}


@pytest.mark.report("U66")
@pytest.mark.report("U99")
@pytest.mark.rule(10)
async def test_results_cancels_and_parks_race_without_deadlock_or_contradiction(cell: Cell) -> None:
    """Three ways at once over real runtimes: each Turn has exactly one end, and its events agree."""
    hands = FakeHands()
    runtimes = [
        await cell.runtime(function(calling, tools=catalog()), hands=hands) for _ in range(2)
    ]
    session = await opened(runtimes[0])
    threads = [await session.open_thread(f"t{n}") for n in range(30)]

    def asked(execution: str) -> bool:
        cancels = hands.controls_of(CancelExecution)
        return execution in hands.executions or execution in [each.execution for each in cancels]

    async def answer(execution: str) -> None:
        await until(lambda: asked(execution), "Hands hear of the call")
        await hands.send(hands.update(execution))

    async def one(number: int, round: int) -> str:
        turn = await threads[number].submit(f"{number}.{round}", "x")
        execution = f"{turn.id}.x1"
        other = await runtimes[1].get_turn(turn.id)
        async with running(answer(execution)):
            if round % 3:
                await until(lambda: asked(execution), "the call reaches Hands")
            with suppress(WrongState):
                await other.cancel(f"c{number}.{round}")
            return str((await soon(other.result())).phase)

    for round in range(6):
        phases = await asyncio.gather(*(one(number, round) for number in range(30)))
        assert set(phases) <= {"COMPLETED", "CANCELLED"}
    events: list[PublicEvent] = []
    cursor: str | None = None
    while True:
        page = await session.events(cursor, limit=1000)
        events += page.events
        if page.cursor == page.high_watermark:
            break
        cursor = page.cursor
    ends = [e.turn for e in events if e.type in ("turn.completed", "turn.cancelled")]
    assert len(ends) == len(set(ends)) == 180
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


@pytest.mark.capability("C14.1")
async def test_why_names_each_wait(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    first, second = [await session.submit(f"r{n}", "x") for n in range(2)]
    (execution,) = await hands.asked()
    waiting = await first.status()
    assert waiting.reasons == ["TOOLS"]
    assert execution in waiting.why[0]
    queued = await second.status()
    assert (queued.reasons, queued.behind) == (["QUEUED_BEHIND"], first.id)
    await hands.send(hands.update(execution, S.STARTED))
    assert "runs on the route hands" in (await first.status()).why[0]
    await asyncio.to_thread(
        write, runtime, "update turn set pause_intent = 1 where id = '" + first.id + "'"
    )
    assert "PAUSED" in (await first.status()).reasons
    await asyncio.to_thread(write, runtime, "update turn set pause_intent = 0")
    await hands.succeed(execution, sequence=2)
    assert (await soon(first.result())).text == "done"
    assert (await first.status()).reasons == ["ENDED"]
