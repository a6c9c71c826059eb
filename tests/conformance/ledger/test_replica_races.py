"""What two replicas of a Brain do to one Thread at the same moment, each over a connection of its own."""

import asyncio

import pytest

from nerve.brain.handles import Session
from nerve.brain.ledger.claim import release_threads
from nerve.brain.ledger.step_unit import Verdict
from nerve.common.lease import Release, release
from nerve.common.sql import sql
from support.brain_cell import KEY, rows
from support.brain_desk import ID, Desk, Desks, parked
from support.fake_hands import FakeHands
from support.waiting import race

ENDS = sql(
    "select turn, count(*) as ends from event where type in ('turn.completed', 'turn.cancelled')"
    " group by turn"
)
PHASES = sql("select id, phase, open_count from turn")
ROUNDS = 30


async def ends_once(session: Session, turns: int) -> None:
    ends = await rows(session.runtime, ENDS)
    assert [row["ends"] for row in ends] == [1] * turns
    assert {row["open_count"] for row in await rows(session.runtime, PHASES)} == {0}


@pytest.mark.rule(9)
@pytest.mark.rule(10)
@pytest.mark.report("U66", "U99")
@pytest.mark.parametrize("claiming", [None, ID])
async def test_a_cancel_against_the_delivery_of_the_last_result_leaves_nobody_waiting(
    desks: Desks, session: Session, claiming: str | None
) -> None:
    one, other = desks
    hands = FakeHands()
    for round in range(ROUNDS):
        claimed, (execution,) = await parked(one, session, f"r{round}", 1)
        cancelled, delivered = await race(
            other.cancel(KEY.id, claimed.turn, f"c{round}"),
            one.deliver(hands.update(execution), claiming=claiming),
            first=(round + 1) % 2,
        )
        assert not cancelled.ended, "its tool had run: it settles"
        if delivered.claimed is None:
            mine, theirs = await asyncio.gather(one.claim(ID), other.claim(ID))
            owner = one if mine else other
            (held,) = [*mine, *theirs]
        else:
            owner, held = one, delivered.claimed
            assert await other.claim(ID) == []
        assert [intent.state for intent in held.unapplied] == ["RECEIVED"]
        assert await owner.settle(held) is Verdict.COMMITTED
        again = await one.cancel(KEY.id, claimed.turn, f"c{round}")
        assert again.ended is cancelled.ended
    assert {row["phase"] for row in await rows(session.runtime, PHASES)} == {"CANCELLED"}
    await ends_once(session, ROUNDS)


async def _take_from(desk: Desk, host: str) -> bool:
    unit = Release(host=host, now=desk.now(), also=release_threads)
    return await desk.ledger.commit(release, unit)


@pytest.mark.rule(1)
@pytest.mark.rule(9)
@pytest.mark.law(3)
@pytest.mark.report("U14")
async def test_a_release_against_late_commits_gives_each_turn_one_end_by_one_of_the_two(
    desks: Desks, session: Session
) -> None:
    victim, keeper = desks
    threads = [await session.open_thread(f"t{n}") for n in range(40)]
    seen: set[Verdict] = set()
    for round in range(5):
        await asyncio.gather(*(thread.submit(f"{round}.{thread.key}", "x") for thread in threads))
        owned = await victim.claim(ID)
        assert len(owned) == len(threads)
        verdicts: list[Verdict] = []
        releasing: list[asyncio.Task[bool]] = []
        for start in range(0, len(owned), 8):
            if start == 8 * round:
                work = _take_from(keeper, victim.host.id)
                releasing.append(asyncio.create_task(work))
            few = owned[start : start + 8]
            verdicts += await asyncio.gather(*(victim.finish(each) for each in few))
        assert await releasing[0]
        seen |= {*verdicts}
        late = {
            claimed.turn
            for claimed, verdict in zip(owned, verdicts, strict=True)
            if verdict is Verdict.FENCED
        }
        heirs = await keeper.claim(ID)
        assert {claimed.turn for claimed in heirs} == late, (
            "what was not committed, and nothing else"
        )
        for claimed in heirs:
            assert await keeper.finish(claimed) is Verdict.COMMITTED
        await victim.open(ID)
    assert seen == {Verdict.COMMITTED, Verdict.FENCED}
    assert {row["phase"] for row in await rows(session.runtime, PHASES)} == {"COMPLETED"}
    await ends_once(session, 5 * len(threads))
