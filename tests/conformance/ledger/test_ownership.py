"""One owner per Thread, fenced inside the committing transaction; shown on two connections."""

import asyncio

import pytest

from nerve.brain.handles import Session
from nerve.brain.harness import Definition
from nerve.brain.ledger.advance import advance
from nerve.brain.ledger.claim import GiveBack, give_back, release_threads
from nerve.brain.ledger.definitions import Offer, definition_id, offer
from nerve.brain.ledger.sessions import OpenThread, open_thread
from nerve.brain.ledger.step_unit import Next, Verdict
from nerve.brain.runtime import DurableRuntime
from nerve.common.lease import Release, release
from nerve.common.sql import sql
from support.brain_cell import KEY, rows, write
from support.brain_desk import ID, Desk, Desks
from support.fake_hands import FakeHands

STATE = [
    sql(f"select * from {table} order by 1, 2")
    for table in (
        "thread",
        "turn",
        "run",
        "step",
        "journal",
        "event",
        "message",
        "intent",
        "outbox",
    )
]
RUNS = sql("select number, state, host from run order by number")
STEPS = sql("select run, number, state, resumed_from from step order by run, number")


async def everything(runtime: DurableRuntime) -> list[list[tuple[object, ...]]]:
    found = [await rows(runtime, each) for each in STATE]
    return [[tuple(row[key] for key in row.keys()) for row in each] for each in found]


async def take_from(desk: Desk, other: Desk) -> bool:
    """Release another host, as a sweep does."""
    unit = Release(host=other.host.id, now=desk.now(), also=release_threads)
    return await desk.ledger.commit(release, unit)


@pytest.mark.capability("C1.2")
@pytest.mark.rule(2)
@pytest.mark.law(3)
async def test_a_stale_owner_writes_nothing(desks: Desks, session: Session) -> None:
    stale, heir = desks
    await session.submit("r1", "hi")
    (old,) = await stale.claim(ID)
    assert await take_from(heir, stale)
    before = await everything(session.runtime)
    assert await stale.finish(old) is Verdict.FENCED
    assert await stale.ledger.commit(advance, stale.unit(old, Next.CONTINUE)) is Verdict.FENCED
    assert await stale.claim(ID) == []
    assert await everything(session.runtime) == before
    (new,) = await heir.claim(ID)
    assert await stale.finish(old) is Verdict.FENCED
    assert await heir.finish(new) is Verdict.COMMITTED
    assert await stale.finish(old) is Verdict.FENCED


@pytest.mark.rule(2)
async def test_a_fence_compares_the_host_and_not_only_the_number(
    desks: Desks, session: Session
) -> None:
    """A restored database issues a number again that an old process still holds."""
    one, other = desks
    await session.submit("r1", "hi")
    (claimed,) = await one.claim(ID)
    assert await other.finish(claimed) is Verdict.FENCED
    assert await one.finish(claimed) is Verdict.COMMITTED


@pytest.mark.capability("C1.3")
@pytest.mark.capability("C1.4")
async def test_the_next_owner_goes_on_with_a_new_run_and_names_the_lost_step(
    desks: Desks, session: Session
) -> None:
    first, second = desks
    turn = await session.submit("r1", "hi")
    (old,) = await first.claim(ID)
    await take_from(second, first)
    (new,) = await second.claim(ID)
    assert (new.turn, old.run, new.run) == (turn.id, 1, 2)
    assert new.token > old.token
    assert new.lost_step == f"{turn.id}.r1.s1"
    assert await second.finish(new) is Verdict.COMMITTED
    runs = await turn.list_runs()
    assert [(run.number, run.state) for run in runs] == [(1, "LOST"), (2, "FINISHED")]
    steps = await turn.list_steps()
    assert [step.resumed_from_step_id for step in steps] == [None, f"{turn.id}.r1.s1"]
    assert [step.state for step in steps] == ["LOST", "COMPLETED"]


@pytest.mark.capability("C1.1")
@pytest.mark.law(3)
async def test_two_hosts_that_claim_at_once_never_share_a_thread(
    desks: Desks, session: Session
) -> None:
    threads = [await session.open_thread(f"t{n}") for n in range(40)]
    for round in range(5):
        for n, thread in enumerate(threads):
            await thread.submit(f"{round}.{n}", "x")
        claims = await asyncio.gather(*(desk.claim(ID, limit=7) for desk in (*desks, *desks) * 4))
        owned = [claimed for each in claims for claimed in each]
        assert len({claimed.thread for claimed in owned}) == len(owned) == 40
        for index, each in enumerate(claims):
            for claimed in each:
                assert await desks[index % 2].finish(claimed) is Verdict.COMMITTED


@pytest.mark.report("U12")
async def test_a_stale_list_claims_nothing_that_is_done(desks: Desks, session: Session) -> None:
    one, other = desks
    await session.submit("r1", "hi")
    (claimed,) = await one.claim(ID)
    assert await one.finish(claimed) is Verdict.COMMITTED
    assert await other.claim(ID) == []
    assert await other.finish(claimed) is Verdict.FENCED


@pytest.mark.report("U14")
async def test_two_owners_that_overlap_record_one_outcome(desks: Desks, session: Session) -> None:
    first, second = desks
    for round in range(30):
        turn = await session.submit(f"r{round}", "hi")
        (old,) = await first.claim(ID)
        lost = GiveBack(
            thread=old.thread,
            host=first.host.id,
            token=old.token,
            reason="test",
            ready_at=first.now(),
            now=first.now(),
        )
        assert await second.ledger.commit(give_back, lost)
        (new,) = await second.claim(ID)
        work = [first.finish(old), second.finish(new), first.finish(old), second.finish(new)]
        verdicts = await asyncio.gather(*(reversed(work) if round % 2 else work))
        assert sorted(verdicts) == ["COMMITTED", "FENCED", "FENCED", "FENCED"]
        page = await session.events(thread="main", turn=turn.id, limit=1000)
        assert [event.type for event in page.events].count("turn.completed") == 1


@pytest.mark.rule(1)
async def test_release_is_final_for_its_incarnation(desks: Desks, session: Session) -> None:
    one, other = desks
    assert await take_from(one, other)
    assert not await take_from(one, other)
    assert not await take_from(other, other)
    await session.submit("r1", "hi")
    assert await other.claim(ID) == []
    assert len(await one.claim(ID)) == 1


@pytest.mark.rule(1)
async def test_a_draining_host_is_given_nothing_and_keeps_what_it_has(
    desks: Desks, session: Session
) -> None:
    one, other = desks
    threads = [await session.open_thread(f"t{n}") for n in range(2)]
    turns = [await thread.submit("r", "x") for thread in threads[:1]]
    (mine,) = await one.claim(ID)
    (execution,) = await one.park(mine)
    await one.hosts.drain()
    await threads[1].submit("r2", "x")
    assert await one.claim(ID) == []
    hands = FakeHands()
    delivered = await one.deliver(hands.update(execution), claiming=ID)
    assert delivered.claimed is None
    assert delivered.ready
    assert {claimed.turn for claimed in await other.claim(ID)} >= {turns[0].id}


@pytest.mark.rule(1)
async def test_work_that_ends_against_a_release_is_never_owned_by_a_dead_host(
    desks: Desks, session: Session
) -> None:
    """Claim on delivery races the sweep: whoever is second sees what the first did."""
    keeper, victim = desks
    hands = FakeHands()
    threads = [await session.open_thread(f"t{n}") for n in range(20)]
    for n, thread in enumerate(threads):
        await thread.submit(f"r{n}", "x")
    executions = [(await keeper.park(claimed))[0] for claimed in await keeper.claim(ID)]
    work = [victim.deliver(hands.update(each), claiming=ID) for each in executions]
    work.insert(10, take_from(keeper, victim))  # type: ignore[arg-type]
    await asyncio.gather(*work)
    owned = await rows(session.runtime, sql("select host from thread where phase = 'RUNNING'"))
    assert owned == []
    assert len(await keeper.claim(ID)) == 20


@pytest.mark.rule(7)
async def test_a_thread_owned_by_a_live_host_and_run_by_nobody_is_given_back(
    desks: Desks, session: Session
) -> None:
    one, other = desks
    turn = await session.submit("r1", "hi")
    (lost,) = await one.claim(ID)
    unit = GiveBack(
        thread=lost.thread,
        host=one.host.id,
        token=lost.token,
        reason="its host owned it and did not run it",
        ready_at=one.now(),
        now=one.now(),
    )
    assert await one.ledger.commit(give_back, unit)
    assert not await one.ledger.commit(give_back, unit)
    (new,) = await other.claim(ID)
    assert not await one.ledger.commit(give_back, unit)
    assert await other.finish(new) is Verdict.COMMITTED
    assert (await turn.status()).phase == "COMPLETED"


@pytest.mark.capability("C7.2")
@pytest.mark.capability("C7.3")
async def test_another_versions_backlog_blocks_nobody(desks: Desks, session: Session) -> None:
    one, other = desks
    second = Definition(agent="agent", version="2", harness="function", state_version="1")
    await one.ledger.commit(offer, Offer(definition=second, bindings={}, now=2))
    for n in range(1000):
        name = OpenThread(key=KEY, name=f"old{n}", agent="agent", version="1", now=1)
        await one.ledger.commit(open_thread, name)
    work = [session.thread(f"old{n}").submit(f"r{n}", "x") for n in range(1000)]
    await asyncio.gather(*work)
    new = await session.open_thread("new", agent="agent", version="2")
    turn = await new.submit("new", "x")
    (claimed,) = await other.claim(definition_id(second), limit=10)
    assert claimed.turn == turn.id
    assert await other.finish(claimed) is Verdict.COMMITTED
    assert (await turn.status()).version == "2"


@pytest.mark.capability("C7.1")
async def test_a_thread_stays_with_the_version_it_was_made_for(
    desks: Desks, session: Session
) -> None:
    one, _ = desks
    await session.submit("r1", "x")
    second = Definition(agent="agent", version="2", harness="function", state_version="1")
    await one.ledger.commit(offer, Offer(definition=second, bindings={}, now=2))
    assert await one.claim(definition_id(second)) == []
    assert len(await one.claim(ID)) == 1


@pytest.mark.rule(22)
async def test_a_turn_that_another_has_ended_cannot_end_again(
    desks: Desks, session: Session
) -> None:
    """The schema refuses what no law may do: a terminal phase without its end, a negative count."""
    one, _ = desks
    await session.submit("r1", "x")
    for wrong in (
        "update turn set phase = 'COMPLETED'",
        "update turn set phase = 'ELSEWHERE'",
        "update turn set open_count = -1",
        "update thread set phase = 'RUNNING'",
        "update thread set phase = 'IDLE'",
        "update turn set settle = 'bored'",
    ):
        with pytest.raises(Exception, match="(?i)check constraint"):
            await asyncio.to_thread(write, one.backend, wrong)
