"""Failures of an agent: told apart, tried again with a budget that is stored, recorded whatever they say."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from nerve.brain import DurableRuntime
from nerve.brain.agents.context import Context
from nerve.brain.state.recovery import RecoveryPolicy
from nerve.common import faults
from nerve.common.clock import VirtualClock
from nerve.common.sql import sql
from nerve.protocol.content import Message
from nerve.protocol.errors import Conflict, DefinitionMissing, LedgerUnavailable, Unavailable
from support.brain_cell import (
    Cell,
    calling,
    catalog,
    function,
    opened,
    rows,
)
from support.fake_hands import FakeHands
from support.waiting import soon

RUNS = sql("select number, state, host from run where turn = :turn order by number")
RUNNING = sql("select host from thread where phase = 'RUNNING'")
TURN = sql("select phase, retry_count, retry_at, retry_policy, runs from turn where id = :id")
FIRST_FAILURE = RecoveryPolicy(retries=2, first_seconds=1.0, most_seconds=30.0)


def failing(errors: list[Exception | None], ran: list[int], clock: VirtualClock) -> Any:
    async def body(ctx: Context, input: Message) -> str:
        ran.append(clock.now_ms())
        error = errors.pop(0)
        if error is not None:
            raise error
        return "done"

    return body


@pytest.mark.capability("C5.1")
@pytest.mark.capability("C5.3")
async def test_io_is_tried_again_with_the_default_budget(still: Cell, clock: VirtualClock) -> None:
    ran: list[int] = []
    errors: list[Exception | None] = [
        ConnectionError("no"),
        TimeoutError("no"),
        OSError("no"),
        None,
    ]
    runtime = await still.runtime(function(failing(errors, ran, clock)))
    turn = await (await opened(runtime)).submit("r1", "x")
    await still.advance_until(lambda: len(ran) == 4)
    assert (await soon(turn.result())).text == "done"
    waits = [after - before for before, after in pairwise(ran)]
    assert [1000 <= waits[0] < 1200, 2000 <= waits[1] < 2200, 4000 <= waits[2] < 4200] == [True] * 3
    assert [run.state for run in await turn.list_runs()] == ["RETRYING"] * 3 + ["FINISHED"]


@pytest.mark.capability("C5.2")
async def test_a_programming_error_is_not_tried_again(cell: Cell) -> None:
    ran: list[int] = []

    async def body(ctx: Context, input: Message) -> str:
        ran.append(1)
        raise KeyError("missing")

    turn = await (await opened(await cell.runtime(function(body)))).submit("r1", "x")
    result = await soon(turn.result())
    assert (result.phase, len(ran)) == ("FAILED", 1)
    assert result.failure is not None
    assert "missing" in result.failure["message"]


@pytest.mark.capability("C5.3")
async def test_the_budget_ends(still: Cell, clock: VirtualClock) -> None:
    ran: list[int] = []
    errors: list[Exception | None] = [OSError(f"no {n}") for n in range(9)]
    runtime = await still.runtime(function(failing(errors, ran, clock)))
    turn = await (await opened(runtime)).submit("r1", "x")
    await still.advance_until(lambda: len(ran) == 4)
    result = await soon(turn.result())
    assert (result.phase, len(ran)) == ("FAILED", 4)


@pytest.mark.capability("C5.4")
@pytest.mark.capability("C5.5")
async def test_policy_count_and_time_live_on_the_turn(still: Cell, clock: VirtualClock) -> None:
    """Another host with another policy neither resets nor shortens what the first failure stored."""
    ran: list[int] = []
    errors: list[Exception | None] = [OSError("one"), OSError("two"), OSError("three")]
    body = failing(errors, ran, clock)
    first = await still.runtime(function(body), policy=FIRST_FAILURE)
    turn = await (await opened(first)).submit("r1", "x")
    await still.advance_until(lambda: len(ran) == 1)
    await settled(first, turn.id, 1)
    status = await turn.status()
    assert status.reasons == ["BACKOFF"]
    assert status.recovery is not None
    assert (status.recovery.failures, status.recovery.limit) == (1, 2)
    assert status.recovery.retry_at == ran[0] + 1000
    await first.close()
    generous = RecoveryPolicy(retries=50, first_seconds=0.001, most_seconds=0.001)
    second = await still.runtime(function(body), policy=generous)
    assert len(ran) == 1
    await still.advance_until(lambda: len(ran) == 3)
    found = await second.get_turn(turn.id)
    result = await soon(found.result())
    assert result.phase == "FAILED"
    assert 2000 <= ran[2] - ran[1] < 2200
    events = (await second.get_session(turn.thread.session_key).events(limit=1000)).events
    recovery = [event.payload for event in events if event.type == "turn.recovery"]
    assert [each.get("failures") for each in recovery] == [1, 2]
    assert [each["limit"] for each in recovery] == [2, 2]


@pytest.mark.capability("C5.6")
async def test_shutdown_and_an_incompatible_definition_cost_nothing(
    still: Cell, clock: VirtualClock
) -> None:
    ran: list[int] = []
    errors: list[Exception | None] = [DefinitionMissing("another build"), asyncio.CancelledError()]  # type: ignore[list-item]
    runtime = await still.runtime(function(failing([*errors[:1], None], ran, clock)))
    turn = await (await opened(runtime)).submit("r1", "x")
    await still.advance_until(lambda: len(ran) == 2)
    assert (await soon(turn.result())).text == "done"
    assert (await rows(runtime, TURN, id=turn.id))[0]["retry_count"] == 0


@pytest.mark.report("U105")
@pytest.mark.report("U104")
@pytest.mark.report("U106")
async def test_a_hostile_error_text_is_recorded_and_hurts_nobody(cell: Cell) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text for you")

    hostile: list[Exception] = [
        ValueError("nul \x00 inside"),
        ValueError("lone \ud800 surrogate"),
        ValueError("long " + "x" * 1_000_000),
        Mute(),
    ]

    async def body(ctx: Context, input: Message) -> str:
        raise hostile[int(input.text)]

    runtime = await cell.runtime(function(body))
    session = await opened(runtime)
    for n in range(len(hostile)):
        turn = await session.submit(f"r{n}", f"{n}")
        result = await soon(turn.result())
        assert result.phase == "FAILED"
        assert result.failure is not None
        assert len(result.failure["message"]) < 5000
        assert "\x00" not in result.failure["message"]
    assert (await session.events(limit=1000)).events


async def settled(runtime: DurableRuntime, turn: str, count: int) -> None:
    async with asyncio.timeout(10):
        while (await rows(runtime, TURN, id=turn))[0]["retry_count"] != count:
            await asyncio.sleep(0.001)


@pytest.mark.capability("C5.7")
@pytest.mark.parametrize(
    "error", [Unavailable("away"), Conflict("busy"), LedgerUnavailable("locked")]
)
async def test_internal_unavailability_and_conflicts_are_tried_again(
    cell: Cell, error: Exception
) -> None:
    errors = [error]

    async def body(ctx: Context, input: Message) -> str:
        if errors:
            raise errors.pop()
        return "done"

    quick = RecoveryPolicy(retries=1, first_seconds=0.01, most_seconds=0.01)
    runtime = await cell.runtime(function(body), policy=quick)
    turn = await (await opened(runtime)).submit("r", "x")
    assert (await soon(turn.result())).text == "done"


@pytest.mark.capability("C5.10")
async def test_a_failure_that_cannot_be_recorded_costs_nothing_and_is_gone_back_behind(
    cell: Cell,
) -> None:
    ran: list[int] = []

    async def body(ctx: Context, input: Message) -> str:
        ran.append(1)
        if len(ran) == 1:
            faults.arm("sql.before_commit=raise@1")
            raise ConnectionError("down")
        return "done"

    runtime = await cell.runtime(function(body))
    turn = await (await opened(runtime)).submit("r", "x")
    assert (await soon(turn.result())).text == "done"
    assert [run.state for run in await turn.list_runs()] == ["HANDED_OVER", "FINISHED"]
    assert (await rows(runtime, TURN, id=turn.id))[0]["retry_count"] == 0


@pytest.mark.rule(4)
@pytest.mark.report("U102")
@pytest.mark.parametrize("jump_ms", [-3_600_000, -(10**10), 3_600_000])
async def test_a_clock_that_was_set_keeps_no_ready_turn_waiting(
    still: Cell, clock: VirtualClock, jump_ms: int
) -> None:
    """Admitted by a host an hour ahead, failed and tried again an hour ago: it goes on at once."""
    ran: list[int] = []
    errors: list[Exception | None] = [ConnectionError("down"), None, None]
    api = await still.runtime()
    runtime = await still.runtime(function(failing(errors, ran, clock)))
    session = await opened(runtime)
    first = await (await session.open_thread("a")).submit("r1", "x")
    await still.advance_until(lambda: len(ran) == 1)
    await settled(runtime, first.id, 1)
    await runtime.close()
    second = await api.get_session(session.key).submit("r2", "y")
    clock.step_wall(jump_ms)
    again = await still.runtime(function(failing(errors, ran, clock)))
    begun = clock.monotonic()
    await still.advance_until(lambda: len(ran) == 3)
    assert clock.monotonic() - begun < 40
    for turn in (first, second):
        assert (await soon((await again.get_turn(turn.id)).result())).text == "done"


@pytest.mark.rule(4)
async def test_a_clock_that_was_set_back_keeps_no_question_waiting(
    still: Cell, clock: VirtualClock
) -> None:
    hands = FakeHands()
    runtime = await still.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    await still.advance_until(lambda: hands.executions)
    clock.step_wall(-(10**10))
    count = len(hands.commands)
    begun = clock.monotonic()
    await still.advance_until(lambda: len(hands.commands) > count)
    assert clock.monotonic() - begun < 5
    await hands.succeed(hands.executions[0])
    assert (await soon(turn.result())).text == "done"
