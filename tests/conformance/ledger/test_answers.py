"""What Hands answer, and what Brain does where they do not: repeats, questions, UNKNOWN."""

import asyncio
from dataclasses import replace

import pytest

from nerve.brain.agents.context import Context
from nerve.brain.ledger.inquiries import DOUBTS_MAX
from nerve.common.sql import sql
from nerve.protocol.commands import StartCommand
from nerve.protocol.content import Message
from nerve.protocol.controls import CancelExecution, RouteQuery, SettledExecutions
from nerve.protocol.execution import ExecutionState
from nerve.protocol.updates import Absence, LedgerMark
from support.brain_cell import (
    KEY,
    QUICK,
    Cell,
    calling,
    catalog,
    crash,
    function,
    opened,
    rows,
)
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


@pytest.mark.capability("F11.3")
@pytest.mark.rule(13)
@pytest.mark.law(4)
async def test_unknown_keeps_the_turn_until_a_reconciled_result_comes(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await hands.send(hands.update(execution, S.UNKNOWN, reason="its host died while it ran"))
    status = await turn.status()
    assert status.reasons == ["UNKNOWN_OUTCOME"]
    assert "its host died while it ran" in status.why[0]
    assert f"nerve reconcile {execution}" in status.why[0]
    (shown,) = await turn.tools()
    assert (shown.outcome, shown.effect, shown.received_at) == ("UNKNOWN", "unconfirmed", None)
    await until(lambda: hands.controls_of(RouteQuery), "Brain goes on asking")
    assert len(hands.commands) == 1
    await hands.succeed(execution, "found out", sequence=2)
    assert (await soon(turn.result())).text == "found out"
    (shown,) = await turn.tools()
    assert (shown.outcome, shown.effect) == ("SUCCEEDED", "completed")
    events = (await runtime.get_session(KEY).events(limit=1000)).events
    told = [event.type for event in events if event.type.startswith("tool.")]
    assert told == [
        "tool.requested",
        "tool.unknown",
        "tool.reconciled",
        "tool.received",
        "tool.applied",
    ]


@pytest.mark.rule(13)
async def test_an_unconfirmed_command_is_repeated_as_it_was(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    await until(lambda: len(hands.raws) >= 3, "the command is repeated")
    assert len(set(hands.raws)) == 1
    await hands.succeed(hands.executions[0])
    await soon(turn.result())
    # Repeats already on their way may still come; then it is quiet.
    await until(lambda: hands.controls_of(SettledExecutions), "Hands are told that it was applied")


@pytest.mark.rule(13)
@pytest.mark.rule(16)
async def test_a_route_that_is_away_delays_and_loses_nothing(cell: Cell) -> None:
    hands = FakeHands()
    hands.failing = ConnectionError("the broker is away")
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    turns = [await session.submit(f"r{n}", "x") for n in range(3)]
    assert (await turns[0].status()).phase in ("QUEUED", "RUNNING", "WAITING")
    hands.failing = None
    hands.auto = late
    for turn in turns:
        assert (await soon(turn.result())).text == "late"


@pytest.mark.rule(16)
async def test_a_dead_hosts_unpublished_commands_are_sent_by_another(cell: Cell) -> None:
    silent, hands = FakeHands(), FakeHands(auto=lambda command: "ok")
    silent.failing = ConnectionError("cut off")
    first = await cell.runtime(function(calling, tools=catalog()), hands=silent)
    turn = await (await opened(first)).submit("r1", "x")
    async with asyncio.timeout(10):
        while not await rows(first, OUTBOX):
            await asyncio.sleep(0.005)
    await crash(first)
    second = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    assert (await soon((await second.get_turn(turn.id)).result())).text == "ok"


@pytest.mark.rule(16)
async def test_rows_of_nobody_are_taken_by_any_relay(cell: Cell) -> None:
    """An API-only host cancels: its outgoing control belongs to no host."""
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    api = await cell.runtime()
    await (await api.get_turn(turn.id)).cancel("c1")
    await until(lambda: hands.controls_of(CancelExecution), "the cancel reaches Hands")
    await hands.send(hands.update(execution, S.CANCELLED))
    assert (await soon(turn.result())).phase == "CANCELLED"


@pytest.mark.rule(12)
@pytest.mark.law(4)
@pytest.mark.parametrize("change", ["other ledger", "other epoch", "position went back"])
async def test_not_found_from_another_ledger_never_starts_again(cell: Cell, change: str) -> None:
    hands = FakeHands(auto=lambda command: "ok")
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    await soon((await session.submit("r1", "x")).result())
    hands.auto = None
    turn = await session.submit("r2", "x")
    execution = (await hands.asked(2))[1]
    mark = {
        "other ledger": hands.mark.model_copy(update={"ledger_id": "hands-ledger-2"}),
        "other epoch": hands.mark.model_copy(update={"epoch": 2}),
        "position went back": hands.mark.model_copy(update={"position": 0}),
    }[change]
    count = len(hands.commands)
    if change == "position went back":
        await answered_from_the_past(hands, execution, mark)
    await hands.send(hands.not_found(execution, ledger=mark))
    status = await turn.status()
    assert status.reasons == ["UNKNOWN_OUTCOME"]
    assert "gone or was restored" in status.why[0]
    # It may be told to a ledger that came since, which sees that the command was not meant for it.
    for command in hands.commands[count:]:
        assert command.known_ledger is not None
        assert (command.known_ledger.ledger_id, command.known_ledger.epoch) == ("hands-ledger-1", 1)
        assert change != "position went back"


async def answered_from_the_past(hands: FakeHands, execution: str, mark: LedgerMark) -> None:
    """Question after question is answered by a ledger that stands before what it said once."""
    for _ in range(DOUBTS_MAX):
        asked = len(hands.controls_of(RouteQuery))
        await hands.send(hands.not_found(execution, ledger=mark))

        def asked_again(before: int = asked) -> bool:
            return len(hands.controls_of(RouteQuery)) > before

        await until(asked_again, "Hands are asked again")


@pytest.mark.rule(12)
async def test_an_answer_that_was_overtaken_on_its_way_calls_nothing_unknown(cell: Cell) -> None:
    hands = FakeHands(auto=lambda command: "ok")
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    session = await opened(runtime)
    await soon((await session.submit("r1", "x")).result())
    hands.auto = None
    turn = await session.submit("r2", "x")
    execution = (await hands.asked(2))[1]
    overtaken = hands.mark.model_copy(update={"position": 0})
    late = Absence.NOT_ADMITTED
    # A burst of old answers is one doubt, whatever their number.
    await hands.send(*[hands.not_found(execution, late, ledger=overtaken)] * 5)
    assert (await turn.status()).reasons == ["TOOLS"]
    await until(lambda: hands.controls_of(RouteQuery), "Hands are asked")
    before = len(hands.commands)
    await hands.send(hands.not_found(execution))
    await until(lambda: len(hands.commands) > before, "the command is sent again")
    await hands.succeed(execution)
    assert (await soon(turn.result())).phase == "COMPLETED"


@pytest.mark.rule(12)
async def test_not_found_from_the_same_ledger_starts_again(cell: Cell) -> None:
    hands = FakeHands(auto=lambda command: "ok")
    patient = replace(QUICK, repeat_first_seconds=60.0)
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands, settings=patient)
    session = await opened(runtime)
    await soon((await session.submit("r1", "x")).result())
    hands.auto = None
    turn = await session.submit("r2", "x")
    execution = (await hands.asked(2))[1]
    await hands.send(hands.not_found(execution, older_commands_arriving=True))
    count = len(hands.commands)
    await hands.send(hands.not_found(execution))
    await until(lambda: len(hands.commands) > count, "the command is sent again")
    await hands.succeed(execution, "again")
    assert (await soon(turn.result())).text == "again"


@pytest.mark.rule(12)
@pytest.mark.law(4)
async def test_what_was_admitted_once_is_unknown_where_it_is_not_found(cell: Cell) -> None:
    hands = FakeHands()
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await hands.send(hands.update(execution, S.ADMITTED, attempt=0))
    # One such answer may only have been overtaken by the report of the admission.
    await answered_from_the_past(hands, execution, hands.mark)
    await hands.send(hands.not_found(execution))
    assert (await turn.status()).reasons == ["UNKNOWN_OUTCOME"]


@pytest.mark.rule(17)
async def test_an_expired_command_is_renewed_under_the_same_id_and_keeps_its_age(
    cell: Cell,
) -> None:
    hands = FakeHands()
    patient = replace(QUICK, repeat_first_seconds=60.0)
    runtime = await cell.runtime(function(calling, tools=catalog()), hands=hands, settings=patient)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await hands.send(hands.not_found(execution, Absence.NOT_ADMITTED))
    await until(lambda: len(hands.commands) == 2, "it is renewed")
    old, new = hands.commands
    assert old.execution == new.execution
    assert old.request_digest == new.request_digest
    assert new.admit_before >= old.admit_before
    assert new.issued_at == old.issued_at
    await hands.succeed(execution)
    await soon(turn.result())


async def test_a_refused_command_failed_without_effect(cell: Cell) -> None:
    hands = FakeHands()
    seen: list[str] = []

    async def body(ctx: Context, input: Message) -> str:
        outcome = await ctx.call("echo", text="x").outcome()
        seen.append(outcome.text)
        return str(outcome.effect)

    runtime = await cell.runtime(function(body, tools=catalog()), hands=hands)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await hands.send(
        hands.not_found(execution, Absence.REFUSED, code="binding_mismatch", reason="another tool")
    )
    assert (await soon(turn.result())).text == "none"
    assert seen == ["The tool failed and changed nothing: another tool"]


def late(command: StartCommand) -> str:
    return "late"
