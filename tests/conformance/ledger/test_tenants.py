"""The namespace is the tenant: no look, no wish and no update reaches beyond it, whatever ids are guessed."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from nerve.brain.handles import Turn
from nerve.common.sql import sql
from nerve.protocol.errors import NotFound, UnknownSession, UnknownTurn
from nerve.protocol.execution import ExecutionState
from nerve.protocol.identity import SessionKey, ThreadKey
from nerve.protocol.updates import Absence
from support.brain_cell import KEY, QUICK, Cell, calling, catalog, function, opened, rows
from support.fake_hands import FakeHands
from support.waiting import soon, until

S = ExecutionState
REFUSED = sql("select code, reason from refused order by id")
INTENT = sql("select state, outcome from intent")

EVIL = ThreadKey("evil", "s-1", "main")
LOOKS: dict[str, Callable[[Turn], Awaitable[object]]] = {
    "status": lambda turn: turn.status(),
    "result": lambda turn: turn.result(1),
    "events": lambda turn: anext(aiter(turn.events())),
    "cancel": lambda turn: turn.cancel("c-1"),
}
LISTS: dict[str, Callable[[Turn], Awaitable[object]]] = {
    "runs": lambda turn: turn.list_runs(),
    "steps": lambda turn: turn.list_steps(),
    "tools": lambda turn: turn.tools(),
}


@pytest.mark.capability("A8.1")
async def test_another_tenant_that_knows_an_id_sees_and_moves_nothing(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await runtime.session(EVIL.session_key, agent="agent")
    guessed = Turn(runtime, EVIL, turn.id)
    for name, look in LOOKS.items():
        with pytest.raises(UnknownTurn) as caught:
            await soon(look(guessed))
        assert "did you mean" not in str(caught.value), name
    for name, listed in LISTS.items():
        assert list(await listed(guessed)) == [], name  # type: ignore[call-overload]
        assert name == "tools" or list(await listed(turn)) != []  # type: ignore[call-overload]
    assert len(await turn.tools()) == 1
    for asked in (turn.id, "t" + "0" * 26):
        with pytest.raises(UnknownTurn) as caught:
            await runtime.get_turn(asked, namespace="evil")
        assert caught.value.next_step.startswith("`nerve ls`"), "it names nobody else's"
    assert (await runtime.get_turn(turn.id, namespace="acme")).thread == turn.thread
    # The same answers stand in the ledger as before: nothing was written for the other one.
    await hands.succeed(execution, "fine")
    assert (await soon(turn.result())).text == "fine"


@pytest.mark.capability("A8.1")
async def test_sessions_threads_histories_and_lists_end_at_the_tenant(cell: Cell) -> None:
    hands = FakeHands(auto=lambda command: "fine")
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    assert (await soon(turn.result())).text == "fine"
    other = SessionKey("evil", KEY.session)
    for read in (
        runtime.get_session(other).events(),
        runtime.get_session(other).submit("r1", "x"),
        runtime.get_session(other).close(),
        runtime.session(other),
    ):
        with pytest.raises((UnknownSession, NotFound)):
            await read
    thread = runtime.get_session(other).thread()
    assert (list(await thread.history()), list(await thread.list_turns())) == ([], [])
    for unfinished, found in ((False, [turn.id]), (True, [])):
        listed = await runtime.list_turns(namespace="acme", unfinished=unfinished)
        assert [item.turn for item in listed] == found
        assert await runtime.list_turns(namespace="evil", unfinished=unfinished) == []
    # A request id of one tenant is free for every other one.
    mine = await (await runtime.session(other, agent="agent")).submit("r1", "x")
    assert mine.id != turn.id
    assert [item.turn for item in await runtime.list_turns(namespace="evil")] == [mine.id]


@pytest.mark.capability("A8.1")
@pytest.mark.rule(24)
async def test_an_update_in_another_namespace_is_refused_in_sight_and_changes_nothing(
    cell: Cell,
) -> None:
    hands, evil = FakeHands(), FakeHands(namespace="evil")
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await hands.send(
        evil.update(execution, value="forged"),
        evil.update(execution, S.UNKNOWN, reason="forged"),
        evil.update(execution, value="forged", snapshot=True),
        evil.not_found(execution, Absence.REFUSED, code="no", reason="forged"),
    )
    refused = await rows(runtime, REFUSED)
    assert [row["code"] for row in refused] == ["unauthorized"] * 4
    assert all("names the namespace evil" in row["reason"] for row in refused)
    (intent,) = await rows(runtime, INTENT)
    assert (intent["state"], intent["outcome"]) == ("OPEN", "REQUESTED")
    await hands.succeed(execution, "true")
    assert (await soon(turn.result())).text == "true"


async def test_a_grouped_answer_about_many_tenants_is_taken(cell: Cell) -> None:
    hands, grouped = FakeHands(), FakeHands(namespace="all")
    patient = replace(QUICK, repeat_first_seconds=60.0)
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands, settings=patient)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    before = len(hands.commands)
    await hands.send(grouped.not_found(execution))
    await until(lambda: len(hands.commands) > before, "the command was sent again")
    await hands.succeed(execution, "fine")
    assert (await soon(turn.result())).text == "fine"
