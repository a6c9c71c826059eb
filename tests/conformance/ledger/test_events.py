"""Public events: gapless per Session whatever commits at once, filtered, and never ahead of a reader."""

import asyncio
import random

import pytest

from nerve.brain import DurableRuntime
from nerve.brain.agents.context import Context
from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.handles import Session
from nerve.brain.ledger.events import NewEvent, append
from nerve.brain.ledger.step_unit import Verdict
from nerve.brain.views import HistoryItem
from nerve.common.sql import Tx, law, sql
from nerve.protocol.content import Message
from nerve.protocol.errors import BadInput, Conflict, UnknownThread
from nerve.protocol.events import PublicEvent, check_event
from support.brain_cell import KEY, Cell, calling, catalog, function, hello, opened, rows
from support.brain_desk import ID, Desks
from support.fake_hands import FakeHands
from support.waiting import running, soon


@law("test.tell", keys=lambda unit: (KEY.id,))
async def tell(tx: Tx, unit: int) -> None:
    """Append `unit` events at once."""
    facts = [NewEvent(type="x.test.fact", body={"n": n}) for n in range(unit)]
    await append(tx, KEY.id, facts, now=1)


async def everything(session: Session, after: str | None = None) -> list[PublicEvent]:
    found: list[PublicEvent] = []
    while True:
        page = await session.events(after, limit=1000)
        found += page.events
        if page.cursor == page.high_watermark:
            return found
        after = page.cursor


@pytest.mark.capability("F1.1")
@pytest.mark.law(8)
async def test_sixteen_writers_in_one_session_leave_no_gap(desks: Desks, session: Session) -> None:
    async def write(number: int) -> None:
        chance = random.Random(number)
        for _ in range(30):
            await desks[number % 2].ledger.commit(tell, chance.randint(1, 4))

    await asyncio.gather(*(write(number) for number in range(16)))
    events = await everything(session)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len(events) > 16 * 30


@pytest.mark.report("U100")
@pytest.mark.law(8)
async def test_a_reader_that_follows_skips_nothing_while_others_write(
    desks: Desks, session: Session
) -> None:
    """What is numbered lower never becomes visible later than what is numbered higher."""
    seen: list[int] = []
    done = asyncio.Event()

    async def follow() -> None:
        cursor: str | None = None
        while True:
            ending = done.is_set()
            page = await session.events(cursor, limit=50)
            seen.extend(event.sequence for event in page.events)
            cursor = page.cursor
            if ending and page.cursor == page.high_watermark:
                return
            await asyncio.sleep(0)

    async def write(number: int) -> None:
        for _ in range(60):
            await desks[number % 2].ledger.commit(tell, 1 + number % 3)

    async with running(follow()) as reading:
        await asyncio.gather(*(write(number) for number in range(8)))
        done.set()
        await soon(reading)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) == 2 + sum(60 * (1 + number % 3) for number in range(8))


@pytest.mark.capability("F1.1")
@pytest.mark.capability("F1.2")
@pytest.mark.capability("F1.3")
@pytest.mark.capability("F1.6")
async def test_a_filtered_page_moves_on_even_where_it_is_empty(cell: Cell) -> None:
    runtime = await cell.runtime(function(hello))
    session = await opened(runtime)
    quiet, busy = await session.open_thread("quiet"), await session.open_thread("busy")
    mine = await quiet.submit("q", "x")
    await soon(mine.result())
    for n in range(20):
        await soon((await busy.submit(f"b{n}", "x")).result())
    whole = await everything(session)
    wanted = [event for event in whole if event.thread == "quiet"]
    found: list[PublicEvent] = []
    cursor: str | None = None
    empty = 0
    page = await session.events(limit=1)
    for _ in range(1000):
        page = await session.events(cursor, limit=7, thread="quiet")
        assert int(page.cursor[1:]) - (0 if cursor is None else int(cursor[1:])) <= 7
        found += page.events
        empty += not page.events
        cursor = page.cursor
        if cursor == page.high_watermark:
            break
    assert found == wanted
    assert empty > 5
    assert page.high_watermark == whole[-1].cursor
    of_turn = await session.events(limit=1000, thread="quiet", turn=mine.id)
    assert [event.turn for event in of_turn.events] == [mine.id] * len(of_turn.events)
    (run,) = await mine.list_runs()
    of_run = await session.events(limit=1000, thread="quiet", turn=mine.id, run=run.run)
    assert of_run.events
    assert {event.run for event in of_run.events} == {run.run}


@pytest.mark.capability("F1.4")
@pytest.mark.capability("F1.5")
async def test_filters_need_what_they_belong_to(cell: Cell) -> None:
    runtime = await cell.runtime(function(hello))
    session = await opened(runtime)
    other = await session.open_thread("other")
    turn = await session.submit("r", "x")
    await soon(turn.result())
    run = (await turn.list_runs())[0].run
    for wrong in (
        session.events(turn=turn.id),
        session.events(run=run),
        session.events(thread="main", run=run),
    ):
        with pytest.raises(BadInput, match="needs its Thread"):
            await wrong
    with pytest.raises(Conflict, match="does not belong to the thread other"):
        await session.events(thread=other.key.thread, turn=turn.id)
    stranger = run.replace(turn.id[1:5], "zzzz", 1)
    with pytest.raises(Conflict, match="does not belong to the Turn"):
        await session.events(thread="main", turn=turn.id, run=stranger)
    with pytest.raises(UnknownThread):
        await session.events(thread="none")
    for limit in (0, -1, 1001):
        with pytest.raises(BadInput, match="a page holds 1 to 1000"):
            await session.events(limit=limit)
    for cursor in ("", "x", "e", "e-1", "1", "e1x"):
        with pytest.raises(BadInput, match="is not a cursor"):
            await session.events(cursor)


@pytest.mark.law(8)
@pytest.mark.capability("C2.3")
async def test_events_say_what_their_schemas_say_and_nothing_private(cell: Cell) -> None:
    hands = FakeHands(auto=lambda command: "tool says")

    def answers(request: ModelRequest) -> ModelAnswer:
        if len(request.messages) == 1:
            call = ModelCall(tool="echo", arguments={"text": "x"})
            return ModelAnswer(text="I look.", calls=[call], reasoning="private thoughts")
        return ModelAnswer(text="It is so.", reasoning="more private thoughts")

    model = ScriptedModel(answers)
    agent = ReactAgent("agent", model=model, tools=catalog(), instructions="secret instructions")
    runtime = await cell.runtime(agent, hands=hands)
    session = await opened(runtime)
    turn = await session.submit("r1", "Is it?")
    assert (await soon(turn.result())).text == "It is so."
    cancelled = await session.submit("r2", "again")
    await cancelled.cancel("c1")
    await soon(cancelled.result())
    await session.close()
    events = await everything(session)
    for event in events:
        check_event(event.type, event.payload)
    text = repr(events) + repr(await session.thread().history()) + repr(await turn.tools())
    for private in ("private thoughts", "secret instructions", "sha256:"):
        assert private not in text
    kinds = [event.type for event in events if event.turn == turn.id]
    assert kinds == [
        "turn.queued",
        "message.user",
        "turn.started",
        "message.completed",
        "tool.requested",
        "tool.received",
        "tool.applied",
        "message.completed",
        "turn.completed",
    ]


@pytest.mark.capability("F12.1")
@pytest.mark.capability("F12.3")
async def test_history_and_turns_are_in_order_from_the_public_side_alone(cell: Cell) -> None:
    hands = FakeHands(auto=lambda command: "found")

    def answers(request: ModelRequest) -> ModelAnswer:
        said = len([each for each in request.messages if each["role"] == "assistant"])  # type: ignore[index,call-overload]
        if said % 3 == 2:
            return ModelAnswer(text=f"answer {said}")
        return ModelAnswer(
            text=f"thinking {said}", calls=[ModelCall(tool="echo", arguments={"text": "x"})]
        )

    agent = ReactAgent("agent", model=ScriptedModel(answers), tools=catalog())
    runtime, reader = await cell.runtime(agent, hands=hands), await cell.runtime()
    session = await opened(runtime)
    turns = [await session.submit(f"r{n}", f"question {n}") for n in range(3)]
    for turn in turns:
        await soon(turn.result())
    thread = reader.get_session(KEY).thread()
    said = await thread.history()
    assert [item.message.text for item in said if item.turn == turns[1].id] == [
        "question 1",
        "thinking 3",
        "thinking 4",
        "answer 5",
    ]
    assert [item.sequence for item in said] == sorted(item.sequence for item in said)
    assert len({item.message_id for item in said}) == len(said) == 12
    paged: list[HistoryItem] = []
    after = 0
    while page := await thread.history(after, limit=5):
        paged += page
        after = page[-1].sequence
    assert paged == list(said)
    listed = await thread.list_turns(limit=2)
    listed = [*listed, *await thread.list_turns(listed[-1].ordinal)]
    assert [item.turn for item in listed] == [turn.id for turn in turns]
    assert [item.ordinal for item in listed] == [1, 2, 3]


async def test_a_watcher_sees_every_event_of_its_turn_to_the_end(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    api = await cell.runtime()
    session = api.get_session((await opened(runtime)).key)
    turn = await session.submit("r1", "x")
    kinds: list[str] = []

    async def watch() -> None:
        async for event in turn.events():
            kinds.append(event.type)

    async with running(watch()) as watching:
        (execution,) = await hands.asked()
        await hands.succeed(execution)
        await soon(watching)
    whole = await everything(session)
    assert kinds == [event.type for event in whole if event.turn == turn.id]
    assert kinds[-1] == "turn.completed"
    middle = next(event for event in whole if event.type == "tool.requested")
    rest = [event.type async for event in turn.events(middle.cursor)]
    assert rest == kinds[kinds.index("tool.requested") + 1 :]


async def test_two_turns_in_one_batch_number_their_events_one_after_another(
    desks: Desks, session: Session
) -> None:
    one, _ = desks
    threads = [await session.open_thread(f"t{n}") for n in range(10)]
    for thread in threads:
        await thread.submit("r-" + thread.key.thread, "x")
    claims = await one.claim(ID)
    verdicts = await asyncio.gather(*(one.finish(claimed) for claimed in claims))
    assert set(verdicts) == {Verdict.COMMITTED}
    events = await everything(session)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))


async def counted(runtime: DurableRuntime, table: str) -> int:
    (row,) = await rows(runtime, sql(f"select count(*) as n from {table}"))
    return int(row["n"])


async def test_a_hostile_body_cannot_make_a_turn_of_many_events(cell: Cell) -> None:
    """A Turn that fails for good leaves a bounded trace."""

    async def body(ctx: Context, input: Message) -> str:
        raise ValueError("x" * 100_000)

    runtime = await cell.runtime(function(body))
    turn = await (await opened(runtime)).submit("r", "x")
    assert (await soon(turn.result())).phase == "FAILED"
    assert await counted(runtime, "event") < 10
    (row,) = await rows(runtime, sql("select max(length(body)) as longest from event"))
    assert row["longest"] < 10_000
