"""Admission over two connections: one request is one Turn, for ever, whoever asks."""

import asyncio
from typing import Any

import pytest

from nerve.brain import DurableRuntime
from nerve.brain.agents.context import Context
from nerve.common.sql import sql
from nerve.protocol.content import Message, StructuredPart
from nerve.protocol.errors import (
    BadInput,
    InvalidJSON,
    InvalidName,
    NerveError,
    RequestConflict,
    Timeout,
    Unavailable,
    UnknownAgent,
    UnknownSession,
    UnknownThread,
    UnknownTurn,
)
from nerve.protocol.identity import SessionKey, new_turn_id
from support.brain_cell import KEY, Cell, Pair, catalog, function, hello, opened, rows
from support.waiting import soon

TURNS = sql("select id from turn order by id")
EVENTS = sql("select type, sequence from event order by sequence")
EVERYTHING = [
    sql(f"select count(*) as n from {table}") for table in ("turn", "event", "message", "request")
]


def structured(value: object) -> dict[str, Any]:
    return {"type": "structured", "value": value}


async def counts(runtime: DurableRuntime) -> list[int]:
    return [(await rows(runtime, statement))[0]["n"] for statement in EVERYTHING]


@pytest.mark.capability("A1.1")
@pytest.mark.law(1)
async def test_submit_returns_a_handle_after_one_commit(pair: Pair) -> None:
    one, other = pair
    session = await opened(one)
    before = one.ledger.commits
    turn = await session.submit("r1", "hi")
    assert one.ledger.commits == before + 1
    assert [row["id"] for row in await rows(other, TURNS)] == [turn.id]


@pytest.mark.capability("A1.2")
@pytest.mark.law(6)
async def test_the_same_request_is_the_same_turn_also_from_another_process(pair: Pair) -> None:
    one, other = pair
    turn = await (await opened(one)).submit("r1", "hi")
    again = await (await opened(other)).submit("r1", "hi")
    assert again.id == turn.id
    assert await counts(one) == [1, 4, 1, 1]


@pytest.mark.capability("A1.2")
async def test_the_same_request_is_the_same_turn_after_it_ended(cell: Cell) -> None:
    one, other = await cell.runtime(function(hello)), await cell.runtime()
    turn = await (await opened(one)).submit("r1", "hi")
    assert (await soon(turn.result())).text == "hello hi"
    again = await (await opened(other)).submit("r1", "hi")
    assert again.id == turn.id
    assert (await soon(again.result())).text == "hello hi"


@pytest.mark.capability("A1.3")
@pytest.mark.law(6)
async def test_the_same_id_for_anything_else_is_a_conflict_and_writes_nothing(pair: Pair) -> None:
    one, other = pair
    session = await opened(one)
    turn = await session.submit("r1", "hi")
    second = await session.open_thread("second")
    before = await counts(one)
    for wrong, named in (
        ((await opened(other)).submit("r1", "ho"), "content"),
        (second.submit("r1", "hi"), "target"),
        (turn.cancel("r1"), "operation"),
    ):
        with pytest.raises(RequestConflict, match=f"another {named}") as caught:
            await wrong
        assert caught.value.details == {"turn": turn.id}
    assert await counts(other) == before
    assert (await turn.status()).cancel_requested is False


@pytest.mark.capability("A1.4")
async def test_request_ids_belong_to_their_session(pair: Pair) -> None:
    one, _ = pair
    first = await (await opened(one)).submit("r1", "hi")
    second = await (await opened(one, name="s-2")).submit("r1", "ho")
    assert first.id != second.id


@pytest.mark.rule(9)
@pytest.mark.law(6)
async def test_equal_requests_at_once_are_one_turn(pair: Pair) -> None:
    sessions = [await opened(runtime) for runtime in pair]
    for round in range(50):
        work = [sessions[number % 2].submit(f"r{round}", "hi") for number in range(8)]
        assert len({turn.id for turn in await asyncio.gather(*work)}) == 1
    assert (await counts(pair[0]))[0] == 50


@pytest.mark.rule(9)
async def test_unequal_requests_with_one_id_at_once_admit_exactly_one(pair: Pair) -> None:
    sessions = [await opened(runtime) for runtime in pair]
    for round in range(50):
        work = [sessions[number % 2].submit(f"r{round}", f"n{number}") for number in range(6)]
        answers = await asyncio.gather(*work, return_exceptions=True)
        assert sum(not isinstance(answer, BaseException) for answer in answers) == 1
        assert sum(isinstance(answer, RequestConflict) for answer in answers) == 5


@pytest.mark.capability("A4.2")
@pytest.mark.capability("A4.3")
@pytest.mark.capability("A9.1")
@pytest.mark.capability("A9.2")
@pytest.mark.capability("A9.4")
async def test_any_process_rehydrates_handles_and_reads_start_no_agent(cell: Cell) -> None:
    ran: list[str] = []

    async def body(ctx: Context, input: Message) -> str:
        ran.append(ctx.turn)
        return "done"

    runner = await cell.runtime(function(body))
    await opened(runner)
    await runner.close()
    api, reader = await cell.runtime(), await cell.runtime()
    turn = await api.get_session(KEY).submit("r1", "hi")
    found = await reader.get_turn(turn.id)
    assert found.thread == turn.thread
    await found.status()
    await reader.get_session(KEY).thread().history()
    await reader.get_session(KEY).thread().list_turns()
    await reader.list_turns()
    assert ran == []
    await cell.runtime(function(body))
    assert (await soon(found.result())).text == "done"
    assert ran == [turn.id]


@pytest.mark.capability("A9.3")
async def test_starting_without_what_execution_needs_is_a_clear_error(cell: Cell) -> None:
    async def body(ctx: Context, input: Message) -> str:
        return str(await ctx.call("echo", text="x"))

    with pytest.raises(BadInput, match="neither an executor for it nor a broker"):
        await cell.runtime(function(body, tools=catalog()))


@pytest.mark.capability("A5.1")
@pytest.mark.capability("A5.2")
async def test_a_timeout_cancels_nothing_and_carries_the_identities(pair: Pair, cell: Cell) -> None:
    session = await opened(pair[0])
    with pytest.raises(Timeout) as caught:
        await session.call("r1", "hi", timeout=0.05)
    assert caught.value.identities["thread"] == f"{KEY}/main"
    turn = await pair[1].get_turn(caught.value.identities["turn"])
    waiter = asyncio.ensure_future(turn.result())
    await asyncio.sleep(0)
    waiter.cancel()
    await pair[0].close()
    assert (await turn.status()).cancel_requested is False
    await cell.runtime(function(hello))
    assert (await soon(turn.result())).text == "hello hi"


@pytest.mark.capability("A5.3")
async def test_closing_a_runtime_cancels_nothing(cell: Cell) -> None:
    started = asyncio.Event()

    async def body(ctx: Context, input: Message) -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    first, reader = await cell.runtime(function(body)), await cell.runtime()
    turn = await (await opened(first)).submit("r1", "hi")
    await soon(started.wait())
    waiting = asyncio.ensure_future(turn.result())
    await asyncio.sleep(0)
    await first.close()
    with pytest.raises(Unavailable, match="it goes on where a host runs it"):
        await soon(waiting)
    found = await reader.get_turn(turn.id)
    assert (await found.status()).cancel_requested is False
    await cell.runtime(function(hello))
    assert (await soon(found.result())).text == "hello hi"


async def test_what_is_not_there_is_named(pair: Pair) -> None:
    one, _ = pair
    with pytest.raises(UnknownAgent, match="known here: agent"):
        await opened(one, "agnet")
    with pytest.raises(UnknownSession, match="acme/none"):
        await one.get_session(SessionKey("acme", "none")).submit("r", "x")
    await opened(one)
    with pytest.raises(UnknownThread, match="acme/s-1/none"):
        await one.get_session(KEY).thread("none").submit("r", "x")
    with pytest.raises(UnknownTurn):
        await one.get_turn(new_turn_id(1))
    turn = await one.get_session(KEY).submit("r", "x")
    last = "0" if turn.id[-1] != "0" else "1"
    with pytest.raises(UnknownTurn, match=f"did you mean {turn.id}"):
        await one.get_turn(turn.id[:-1] + last)


@pytest.mark.law(10)
@pytest.mark.report("U104")
@pytest.mark.report("U106")
@pytest.mark.report("U107")
@pytest.mark.parametrize(
    "content",
    [
        "a\x00b",
        "lone \ud800 surrogate",
        structured({"n": float("nan")}),
        structured({"n": float("inf")}),
        structured({"n": 2**53 + 1}),
        structured({"\ud800": 1}),
        structured({"a": "x\x00"}),
        structured({"a": object()}),
        b"bytes",
        "x" * (512 * 1024 + 1),
    ],
)
async def test_content_that_cannot_be_kept_is_refused_at_the_door(
    pair: Pair, content: object
) -> None:
    session = await opened(pair[0])
    before = await counts(pair[0])
    with pytest.raises((BadInput, InvalidJSON)) as caught:
        await session.submit("r1", content)  # type: ignore[arg-type]
    assert caught.value.next_step
    assert await counts(pair[1]) == before


@pytest.mark.law(10)
@pytest.mark.report("U104")
@pytest.mark.report("U106")
@pytest.mark.parametrize("id", ["", "a\x00", "\ud800", "x" * 257, "two\nlines", "\x1b[31m"])
async def test_request_ids_that_cannot_be_kept_are_refused(pair: Pair, id: str) -> None:
    session = await opened(pair[0])
    turn = await session.submit("good", "x")
    for asking in (session.submit(id, "x"), turn.cancel(id)):
        with pytest.raises(InvalidName):
            await asking
    assert (await counts(pair[1]))[0] == 1


@pytest.mark.report("U107")
async def test_numbers_that_can_be_kept_come_back_exactly(pair: Pair) -> None:
    numbers = [1e-300, 2**53 - 1, 0.1, 1e21, -7]
    turn = await (await opened(pair[0])).submit("r1", structured(numbers))
    (said,) = await pair[1].get_session(KEY).thread().history()
    assert said.turn == turn.id
    (part,) = said.message.parts
    assert isinstance(part, StructuredPart)
    assert part.value == numbers


async def test_a_lost_process_between_commit_and_answer_is_found_by_the_same_id(pair: Pair) -> None:
    from nerve.common import faults

    session = await opened(pair[0])
    with faults.armed("brain.submit.after_commit=raise@1"), pytest.raises(faults.InjectedFault):
        await session.submit("r1", "hi")
    turns = await rows(pair[1], TURNS)
    assert [(await (await opened(pair[1])).submit("r1", "hi")).id] == [row["id"] for row in turns]


def test_every_refusal_has_a_stable_code() -> None:
    assert len({error.code for error in NerveError.__subclasses__()}) == len(
        NerveError.__subclasses__()
    )
