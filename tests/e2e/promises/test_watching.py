"""Public events and history: gapless, filtered, in order, without anything private."""

import asyncio
from pathlib import Path

import pytest

from nerve.brain.handles import Session
from nerve.brain.state.turn import TurnPhase
from nerve.protocol.errors import BadInput, Conflict, NerveError
from nerve.protocol.events import PublicEvent, sequence_of
from support.whole import SECRET, Whole, whole


async def everything(session: Session) -> list[PublicEvent]:
    """Each committed event, in pages of seven."""
    found: list[PublicEvent] = []
    cursor = None
    while True:
        page = await session.events(cursor, limit=7)
        found += page.events
        cursor = page.cursor
        if cursor == page.high_watermark:
            return found


async def talked(here: Whole) -> Session:
    session = await here.session()
    side = await session.open_thread("side", agent="whole")
    turns = [await session.submit(f"r-{n}", "echo prove throw") for n in range(3)]
    turns += [await side.submit(f"s-{n}", "echo echo") for n in range(3)]
    for turn in turns:
        assert (await turn.result(20)).phase is TurnPhase.COMPLETED
    return session


@pytest.mark.law(8)
@pytest.mark.capability("F1.1", "F1.3", "A7.4", "C2.3")
async def test_a_session_is_one_gapless_sequence_without_private_state(tmp_path: Path) -> None:
    async with whole(tmp_path) as here:
        session = await talked(here)
        events = await everything(session)
        assert [each.sequence for each in events] == list(range(1, len(events) + 1))
        page = await session.events(None, limit=1)
        assert sequence_of(page.high_watermark) == len(events)
        for table in ("event", "message", "turn", "intent", "outbox"):
            for row in here.rows("brain", f"select * from {table}"):
                assert SECRET not in str(row) and SECRET.encode() not in str(row).encode(), table
        # It is there, where only the agent reads it.
        journal = here.rows("brain", "select entries from journal")
        assert any(SECRET.encode() in row["entries"] for row in journal)
        assert "checkpoint" not in {each.type for each in events}


@pytest.mark.capability("F1.1", "F1.2", "F1.6")
async def test_a_filtered_page_moves_on_although_it_is_empty(tmp_path: Path) -> None:
    async with whole(tmp_path) as here:
        session = await talked(here)
        events = await everything(session)
        cursor, seen, pages = None, list[PublicEvent](), 0
        while True:
            page = await session.events(cursor, limit=5, thread="side")
            moved = sequence_of(page.cursor) - sequence_of(cursor)
            seen += page.events
            pages += not page.events
            cursor = page.cursor
            if cursor == page.high_watermark:
                break
            assert moved == 5
        assert pages > 0
        assert seen == [each for each in events if each.thread == "side"]


@pytest.mark.capability("F1.4", "F1.5")
async def test_a_filter_names_what_stands_above_it_and_what_belongs_elsewhere_is_refused(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        session = await talked(here)
        (first, *_) = await session.thread().list_turns()
        (run, *_) = await (await here.runtime.get_turn(first.turn)).list_runs()
        for names in ({"turn": first.turn}, {"thread": "main", "run": run.run}):
            with pytest.raises(BadInput):
                await session.events(**names)  # type: ignore[arg-type]
        with pytest.raises(Conflict):
            await session.events(thread="side", turn=first.turn)
        with pytest.raises(Conflict):
            await session.events(thread="main", turn=first.turn, run="t" + "0" * 26 + ".r1")
        with pytest.raises(NerveError):
            await session.events(thread="nowhere")
        mine = await session.events(thread="main", turn=first.turn, limit=1000)
        assert {each.turn for each in mine.events} == {first.turn}
        ofrun = await session.events(thread="main", turn=first.turn, run=run.run, limit=1000)
        assert ofrun.events and {each.run for each in ofrun.events} == {run.run}


@pytest.mark.report("U100")
@pytest.mark.law(8)
async def test_a_reader_that_follows_many_writers_skips_nothing(tmp_path: Path) -> None:
    async with whole(tmp_path) as here:
        session = await here.session()
        threads = [await session.open_thread(f"t{n}", agent="whole") for n in range(8)]
        found: list[int] = []

        async def follow() -> None:
            cursor = None
            while True:
                page = await session.events(cursor, limit=50)
                found.extend(each.sequence for each in page.events)
                cursor = page.cursor
                await asyncio.sleep(0)

        follower = asyncio.create_task(follow())
        turns = [
            await thread.submit(f"r-{t.key.thread}", "echo prove")
            for t in threads
            for thread in (t,)
        ]
        await asyncio.gather(*(turn.result(20) for turn in turns))
        last = (await everything(session))[-1].sequence
        async with asyncio.timeout(10):
            while not found or found[-1] < last:
                await asyncio.sleep(0.01)
        follower.cancel()
        await asyncio.wait([follower])
        assert found == list(range(1, last + 1))


@pytest.mark.capability("F12.1", "F12.2", "F12.3")
async def test_history_is_in_order_keeps_messages_apart_and_survives_pruning(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        session = await here.session()
        for number in range(2):
            await (await session.submit(f"r-{number}", "echo")).result(20)
        thread = session.thread()
        history = await thread.history()
        said = [(each.message.role.value, each.message.text) for each in history]
        one = [("user", "echo"), ("assistant", "I will look"), ("assistant", "the end")]
        assert said == one * 2
        assert len({each.message_id for each in history}) == len(history)
        sequences = [each.sequence for each in history]
        assert sequences == sorted(sequences)
        turns = [(each.ordinal, each.request_id) for each in await thread.list_turns()]
        assert turns == [(1, "r-0"), (2, "r-1")]
        here.execute("brain", "delete from event")
        assert await thread.history() == history
        assert [(each.ordinal, each.request_id) for each in await thread.list_turns()] == turns
        rest = await thread.history(after=history[2].sequence, limit=2)
        assert rest == history[3:5]
