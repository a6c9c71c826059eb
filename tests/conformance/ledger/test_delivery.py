"""Updates from Hands: recorded always, applied in order, and the Thread moves when it may."""

import asyncio

import pytest

from nerve.brain.handles import Session
from nerve.brain.ledger.deliver import deliver
from nerve.brain.ledger.repair import wake_idle_waiters
from nerve.brain.ledger.step_unit import Verdict
from nerve.common import faults
from nerve.common.sql import sql
from nerve.protocol.controls import RouteQuery
from nerve.protocol.errors import DiskFull, LedgerUnavailable
from nerve.protocol.execution import Effect, ExecutionState
from support.brain_cell import (
    Cell,
    calling,
    catalog,
    function,
    heal,
    opened,
    poison,
    rows,
    write,
)
from support.brain_desk import ID, Desks, parked
from support.fake_hands import FakeHands
from support.waiting import soon, until

S = ExecutionState

THREADS = sql("select phase, host, ready_at from thread order by id")
TURNS = sql("select phase, open_count from turn order by id")
INTENTS = sql("select execution, state, outcome, sequence, inquiries from intent order by ordinal")
OBSERVED = sql("select kind from observation order by id")
INBOX = sql("select execution, sequence, state, reason from inbox order by sequence")
REFUSED = sql("select code, reason, head from refused order by id")
OUTBOX = sql("select id from outbox order by id")


@pytest.mark.rule(9)
@pytest.mark.parametrize("claiming", [None, ID])
async def test_two_results_of_one_thread_at_once_leave_nobody_waiting(
    desks: Desks, session: Session, claiming: str | None
) -> None:
    one, other = desks
    hands = FakeHands()
    for round in range(40):
        _, (left, right) = await parked(one, session, f"r{round}", 2)
        work = [
            one.deliver(hands.update(left), claiming=claiming),
            other.deliver(hands.update(right), claiming=claiming),
        ]
        done = await asyncio.gather(*(reversed(work) if round % 2 else work))
        moved = [each for each in done if each.ready or each.claimed]
        assert len(moved) == 1
        if claiming is None:
            (claimed,) = await one.claim(ID)
            owner = one
        else:
            assert moved[0].claimed is not None
            claimed, owner = moved[0].claimed, one if moved[0] is done[round % 2] else other
        assert [intent.state for intent in claimed.unapplied] == ["RECEIVED"] * 2
        assert await owner.finish(claimed) is Verdict.COMMITTED
    assert {row["open_count"] for row in await rows(session.runtime, TURNS)} == {0}


@pytest.mark.rule(9)
async def test_both_results_in_one_batch_leave_nobody_waiting(
    desks: Desks, session: Session
) -> None:
    one, _ = desks
    hands = FakeHands()
    _, executions = await parked(one, session, "r", 5)
    futures = [one.ledger.submit(deliver, one.delivery(hands.update(e))) for e in executions]
    done = await asyncio.gather(*futures)
    assert [each.ready for each in done] == [False] * 4 + [True]


@pytest.mark.rule(11)
async def test_any_wakes_at_the_first_result_and_all_at_the_last(
    desks: Desks, session: Session
) -> None:
    one, _ = desks
    hands = FakeHands()
    _, (first, second) = await parked(one, session, "r1", 2, "ANY")
    assert (await one.deliver(hands.update(first))).ready
    (claimed,) = await one.claim(ID)
    assert [intent.state for intent in claimed.unapplied] == ["RECEIVED", "OPEN"]
    # The second arrives while the Run goes on: the park that follows must not sleep on it.
    assert not (await one.deliver(hands.update(second))).ready
    await one.park(claimed, 1, wait_mode="ANY")
    (again,) = await one.claim(ID)
    assert [intent.state for intent in again.unapplied] == ["RECEIVED", "OPEN"]


@pytest.mark.rule(11)
async def test_delivery_claims_only_what_this_host_offers_and_else_makes_it_ready(
    desks: Desks, session: Session
) -> None:
    one, other = desks
    hands = FakeHands()
    _, (execution,) = await parked(one, session, "r1", 1)
    delivered = await other.deliver(hands.update(execution), claiming="agent/2/function/1")
    assert (delivered.claimed, delivered.ready, delivered.definition) == (None, True, ID)
    (thread,) = await rows(session.runtime, THREADS)
    assert (thread["phase"], thread["host"]) == ("READY", None)


@pytest.mark.rule(11)
async def test_a_paused_turn_records_its_results_and_stays(desks: Desks, session: Session) -> None:
    one, _ = desks
    hands = FakeHands()
    _, (execution,) = await parked(one, session, "r1", 1)
    await asyncio.to_thread(write, one.backend, "update turn set pause_intent = 1")
    delivered = await one.deliver(hands.update(execution), claiming=ID)
    assert (delivered.claimed, delivered.ready) == (None, False)
    (intent,) = await rows(session.runtime, INTENTS)
    assert intent["state"] == "RECEIVED"


@pytest.mark.rule(9)
async def test_a_scan_wakes_a_thread_that_waits_for_nothing(desks: Desks, session: Session) -> None:
    one, _ = desks
    await parked(one, session, "r1", 1)
    await asyncio.to_thread(write, one.backend, "update turn set open_count = 0")
    assert await one.ledger.commit(wake_idle_waiters, one.now()) == 1
    assert await one.ledger.commit(wake_idle_waiters, one.now()) == 0
    assert len(await one.claim(ID)) == 1


async def test_only_a_gapless_prefix_is_applied_and_what_is_missing_is_asked_for(
    desks: Desks, session: Session
) -> None:
    one, _ = desks
    hands = FakeHands()
    _, (execution,) = await parked(one, session, "r1", 1)
    updates = [
        hands.update(execution, S.ADMITTED, sequence=1, attempt=0),
        hands.update(execution, S.STARTED, sequence=2),
        hands.update(execution, S.SUCCEEDED, sequence=3),
    ]
    for early in (updates[2], updates[1]):
        assert (await one.deliver(early)).accepted == "HELD"
    assert [row["sequence"] for row in await rows(session.runtime, INBOX)] == [2, 3]
    assert f"{execution}/replay" in [row["id"] for row in await rows(session.runtime, OUTBOX)]
    last = await one.deliver(updates[0])
    assert (last.accepted, last.ready) == ("APPLIED", True)
    (intent,) = await rows(session.runtime, INTENTS)
    assert (intent["state"], intent["sequence"]) == ("RECEIVED", 3)
    assert await rows(session.runtime, INBOX) == []
    for repeat in updates:
        assert (await one.deliver(repeat)).accepted == "DUPLICATE"
    assert await rows(session.runtime, OBSERVED) == []


async def test_a_snapshot_closes_the_prefix(desks: Desks, session: Session) -> None:
    one, _ = desks
    hands = FakeHands()
    _, (execution,) = await parked(one, session, "r1", 1)
    late = hands.update(execution, S.STARTED, sequence=2)
    snapshot = hands.update(execution, S.SUCCEEDED, sequence=3, snapshot=True)
    assert (await one.deliver(late)).accepted == "HELD"
    assert (await one.deliver(snapshot)).ready
    assert await rows(session.runtime, INBOX) == []
    assert (await one.deliver(late)).accepted == "DUPLICATE"


@pytest.mark.rule(21)
async def test_a_late_update_that_says_otherwise_is_evidence_and_changes_nothing(
    desks: Desks, session: Session
) -> None:
    one, _ = desks
    hands = FakeHands()
    _, (execution,) = await parked(one, session, "r1", 1)
    await one.deliver(hands.update(execution))
    late = hands.update(execution, S.FAILED, sequence=2, effect=Effect.UNCONFIRMED)
    assert (await one.deliver(late)).accepted == "DUPLICATE"
    assert [row["kind"] for row in await rows(session.runtime, OBSERVED)] == ["late_update"]
    (intent,) = await rows(session.runtime, INTENTS)
    assert intent["outcome"] == "SUCCEEDED"


@pytest.mark.rule(15)
@pytest.mark.report("U50")
async def test_one_bad_envelope_harms_none_of_its_group(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    threads = [await session.open_thread(f"t{n}") for n in range(4)]
    turns = [await thread.submit(f"r{n}", "x") for n, thread in enumerate(threads)]
    executions = await hands.asked(4)
    good = [hands.update(execution) for execution in executions]
    stranger = hands.update(executions[0].replace(executions[0][1:9], "00000000", 1))
    broken = good[0].replace(b"SUCCEEDED", b"SUCCEEDEE")
    await hands.send(good[0], b"{", broken, b"", stranger, b"\xff\xfe", hands.raws[0], *good[1:])
    for turn in turns:
        assert (await soon(turn.result())).text == "done"
    refused = await rows(runtime, REFUSED)
    assert len(refused) == 6
    assert all(len(row["head"]) <= 512 for row in refused)


@pytest.mark.rule(15)
async def test_a_poisonous_update_is_quarantined_and_the_next_question_heals(cell: Cell) -> None:
    """A law that fails on one update, for ever, may not keep its group from being acknowledged."""
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    first = await (await session.open_thread("a")).submit("r1", "x")
    second = await (await session.open_thread("b")).submit("r2", "x")
    bad, good = await hands.asked(2)
    await poison(runtime, bad)
    await hands.send(hands.update(bad), hands.update(good))
    done, stuck = (first, second) if good.startswith(first.id) else (second, first)
    assert (await soon(done.result())).text == "done"
    (row,) = await rows(runtime, INBOX)
    assert (row["execution"], row["state"]) == (bad, "QUARANTINED")
    await heal(runtime)
    await until(lambda: hands.controls_of(RouteQuery), "Brain asks for the present state")
    await hands.send(hands.update(bad, snapshot=True))
    assert (await soon(stuck.result())).text == "done"


@pytest.mark.law(1)
@pytest.mark.law(2)
@pytest.mark.parametrize("error", [DiskFull, LedgerUnavailable])
async def test_what_could_not_be_committed_is_not_acknowledged(
    cell: Cell, error: type[Exception]
) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()

    def fail() -> None:
        raise error("not now")

    faults.hook("sql.before_commit", fail)
    with pytest.raises(error):
        await hands.succeed(execution)
    faults.disarm()
    assert (await turn.status()).phase == "WAITING"
    await hands.succeed(execution)
    assert (await soon(turn.result())).text == "done"


@pytest.mark.capability("D9.2")
async def test_a_result_is_applied_in_the_commit_of_the_checkpoint_that_holds_it(
    desks: Desks, session: Session
) -> None:
    one, other = desks
    hands = FakeHands()
    _, (execution,) = await parked(one, session, "r1", 1)
    await one.deliver(hands.update(execution))
    applied = sql("select applied_at, applied_step from intent")
    checkpoints = sql("select step, created_at from journal order by position")
    (claimed,) = await one.claim(ID)
    assert await other.finish(claimed) is Verdict.FENCED
    (row,) = await rows(session.runtime, applied)
    assert (row["applied_at"], row["applied_step"]) == (None, None)
    assert await one.finish(claimed) is Verdict.COMMITTED
    (row,) = await rows(session.runtime, applied)
    *_, last = await rows(session.runtime, checkpoints)
    assert (row["applied_step"], row["applied_at"]) == (last["step"], last["created_at"])
    assert row["applied_step"] == f"{claimed.turn}.r2.s1"
