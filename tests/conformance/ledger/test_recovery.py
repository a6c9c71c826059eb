"""A Turn survives its hosts: crashes, failures that are tried again, drains and lost hints."""

import asyncio

import pytest

from nerve.brain.agents.context import Context
from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.harness import Checkpoint
from nerve.brain.state.recovery import RecoveryPolicy
from nerve.common.sql import sql
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from support.brain_cell import (
    Cell,
    Gate,
    catalog,
    crash,
    function,
    opened,
    rows,
    write,
)
from support.fake_hands import FakeHands
from support.waiting import soon, until

RUNS = sql("select number, state, host from run where turn = :turn order by number")
RUNNING = sql("select host from thread where phase = 'RUNNING'")
TURN = sql("select phase, retry_count, retry_at, retry_policy, runs from turn where id = :id")
FIRST_FAILURE = RecoveryPolicy(retries=2, first_seconds=1.0, most_seconds=30.0)


@pytest.mark.capability("C1.3")
@pytest.mark.capability("C1.4")
@pytest.mark.capability("C1.5")
@pytest.mark.report("U21")
@pytest.mark.report("U23")
async def test_what_a_dead_host_ran_is_finished_by_another_unasked(cell: Cell) -> None:
    stuck, heir = Gate(), Gate()
    heir.open.set()
    first = await cell.runtime(function(stuck))
    session = await opened(first)
    threads = [await session.open_thread(f"t{n}") for n in range(20)]
    turns = [await thread.submit(f"r{n}", f"{n}") for n, thread in enumerate(threads)]
    await until(lambda: stuck.entered == 20, "all run")
    await crash(first)
    second = await cell.runtime(function(heir))
    for n, turn in enumerate(turns):
        found = await second.get_turn(turn.id)
        assert (await soon(found.result())).text == f"done {n}"
        runs = await found.list_runs()
        assert [run.state for run in runs] == ["LOST", "FINISHED"]
        steps = await found.list_steps()
        assert steps[-1].resumed_from_step_id == f"{turn.id}.r1.s1"


@pytest.mark.report("U21")
@pytest.mark.capability("C14.1")
async def test_no_turn_says_that_it_runs_where_nobody_runs_it(cell: Cell) -> None:
    stuck = Gate()
    first = await cell.runtime(function(stuck))
    turn = await (await opened(first)).submit("r1", "x")
    await until(lambda: stuck.entered == 1, "it runs")
    assert (await turn.status()).owner is not None
    await crash(first)
    sweeper = await cell.runtime(function(stuck, "unrelated"))
    found = await sweeper.get_turn(turn.id)

    async def lost() -> bool:
        return (await found.status()).phase == "WAITING"

    async with asyncio.timeout(10):
        while not await lost():
            await asyncio.sleep(0.01)
    status = await found.status()
    assert status.owner is None
    assert status.reasons == ["NO_HOST"]
    assert "No live host offers the agent agent version 1" in status.why[0]


@pytest.mark.capability("C2.2")
async def test_a_broken_chain_of_checkpoints_is_never_advanced(cell: Cell) -> None:
    hands = FakeHands()
    ran: list[str] = []

    async def body(ctx: Context, input: Message) -> str:
        ran.append(ctx.turn)
        return str(await ctx.call("echo", text="x"))

    agent = function(body, tools=catalog())
    runtime = await cell.runtime(agent, hands=hands, warm_frames=0)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await asyncio.to_thread(write, runtime, "update journal set entries = '[\"forged\"]'")
    await hands.succeed(execution)
    status = await turn.status()
    async with asyncio.timeout(10):
        while "BACKOFF" not in status.reasons:
            await asyncio.sleep(0.01)
            status = await turn.status()
    assert "checkpoint chain" in status.why[0]
    assert "restore the ledger from a backup" in status.why[0]
    assert len(ran) == 1
    assert (await rows(runtime, TURN, id=turn.id))[0]["runs"] == 2


@pytest.mark.capability("C2.2")
@pytest.mark.parametrize(
    "forgery",
    [
        "update journal set state = x'6e756c6c'",
        "update journal set state = 'null'",
        "update journal set state = x''",
        "delete from journal",
        "update journal set digest = 'sha256:00'",
        "update thread set digest = 'sha256:00'",
        "update thread set position = 0",
    ],
)
async def test_a_checkpoint_cannot_be_discarded_or_forged(cell: Cell, forgery: str) -> None:
    hands = FakeHands()

    async def body(ctx: Context, input: Message) -> str:
        return str(await ctx.call("echo", text="x"))

    agent = function(body, tools=catalog())
    runtime = await cell.runtime(agent, hands=hands, warm_frames=0)
    turn = await (await opened(runtime)).submit("r1", "x")
    (execution,) = await hands.asked()
    await asyncio.to_thread(write, runtime, forgery)
    await hands.succeed(execution)
    async with asyncio.timeout(10):
        while "BACKOFF" not in (await turn.status()).reasons:
            await asyncio.sleep(0.01)
    events = (await runtime.get_session(turn.thread.session_key).events()).events
    assert [event.type for event in events].count("turn.completed") == 0


@pytest.mark.capability("C3.1")
@pytest.mark.law(5)
async def test_a_committed_answer_is_not_asked_for_again(cell: Cell) -> None:
    """The answer stands before the local tool that it asked for is entered."""
    asked: list[str] = []
    entered = asyncio.Event()
    local = Catalog()

    @local.tool(idempotent_start=True)
    async def look(text: str) -> str:
        """Looks."""
        entered.set()
        await hold.wait()
        return f"saw {text}"

    def answers(request: ModelRequest) -> ModelAnswer:
        asked.append(request.key)
        if len(request.messages) == 1:
            return ModelAnswer(calls=[ModelCall(tool="look", arguments={"text": "it"})])
        return ModelAnswer(text="answered")

    hold = asyncio.Event()
    agent = ReactAgent("agent", model=ScriptedModel(answers), local_tools=local)
    first = await cell.runtime(agent)
    turn = await (await opened(first)).submit("r1", "x")
    await soon(entered.wait())
    await crash(first)
    hold.set()
    second = await cell.runtime(agent)
    found = await second.get_turn(turn.id)
    assert (await soon(found.result())).text == "answered"
    assert asked == [f"{turn.id}/model:1", f"{turn.id}/model:2"]
    status = await found.status()
    assert status.phase == "COMPLETED"


@pytest.mark.capability("C4.1")
@pytest.mark.capability("C4.2")
@pytest.mark.capability("C4.3")
async def test_the_limit_of_rounds_counts_over_restarts_and_begins_anew(cell: Cell) -> None:
    hands = FakeHands()
    asked: list[str] = []

    def answers(request: ModelRequest) -> ModelAnswer:
        asked.append(request.key)
        return ModelAnswer(calls=[ModelCall(tool="echo", arguments={"text": "again"})])

    agent = ReactAgent("agent", model=ScriptedModel(answers), tools=catalog(), max_iters=3)
    runtime = await cell.runtime(agent, hands=hands)
    session = await opened(runtime)
    for number in (1, 2):
        turn = await session.submit(f"r{number}", "x")
        for step in range(3):
            executions = await hands.asked((number - 1) * 3 + step + 1)
            await crash(runtime)
            runtime = await cell.runtime(agent, hands=hands)
            await hands.succeed(executions[-1], "ok")
        found = await runtime.get_turn(turn.id)
        result = await soon(found.result())
        assert result.failure is not None
        assert result.failure["code"] == "max_iterations"
        assert len(asked) == number * 3
        session = runtime.get_session(session.key)


@pytest.mark.capability("C8.1")
@pytest.mark.report("U22")
async def test_a_drain_waits_keeps_its_lease_and_hands_over_the_rest(cell: Cell) -> None:
    quick, stuck = Gate(), Gate()

    async def body(ctx: Context, input: Message) -> str:
        return await (quick if input.text == "quick" else stuck)(ctx, input)

    first = await cell.runtime(function(body))
    second_gate = Gate()
    session = await opened(first)
    one = await (await session.open_thread("one")).submit("r1", "quick")
    two = await (await session.open_thread("two")).submit("r2", "slow")
    await until(lambda: quick.entered + stuck.entered == 2, "both run")
    second = await cell.runtime(function(second_gate))
    second_gate.open.set()
    draining = asyncio.ensure_future(first.drain(0.5))
    await asyncio.sleep(0.1)
    late = await (await session.open_thread("three")).submit("r3", "late")
    assert (await soon((await second.get_turn(late.id)).result())).text == "done late"
    assert second_gate.entered == 1
    quick.open.set()
    assert await soon(draining) is False
    assert (await one.status()).phase == "COMPLETED"
    found = await second.get_turn(two.id)
    assert (await soon(found.result())).text == "done slow"
    assert [run.state for run in await found.list_runs()] == ["HANDED_OVER", "FINISHED"]
    assert (await rows(second, TURN, id=two.id))[0]["retry_count"] == 0


@pytest.mark.capability("C10.1")
@pytest.mark.capability("C10.2")
@pytest.mark.law(9)
async def test_with_every_hint_lost_scans_finish_all_work(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NERVE_HINTS", "off")
    hands = FakeHands(auto=lambda command: command.arguments["text"])

    async def body(ctx: Context, input: Message) -> str:
        said = await ctx.gather(*(ctx.call("echo", text=f"{n}") for n in range(3)))
        return ",".join(said)

    runner = await cell.runtime(function(body, tools=catalog()), hands=hands)
    api = await cell.runtime()
    await opened(runner)
    session = api.get_session((await opened(runner)).key)
    threads = [await session.open_thread(f"t{n}") for n in range(10)]
    turns = [await thread.submit("r" + thread.key.thread, "x") for thread in threads]
    for turn in turns:
        assert (await soon(turn.result())).text == "0,1,2"


async def test_a_harness_that_cannot_settle_is_set_back_and_named(cell: Cell) -> None:
    stuck = Gate()
    agent = function(stuck)

    def broken(frame: object, results: object) -> Checkpoint:
        raise RuntimeError("cannot clean up")

    agent.settle = broken  # type: ignore[method-assign]
    runtime = await cell.runtime(agent)
    session = await opened(runtime)
    turn = await session.submit("r1", "x")
    await until(lambda: stuck.entered == 1, "it runs")
    await turn.cancel("c1")
    stuck.open.set()
    async with asyncio.timeout(10):
        while (await turn.status()).phase == "RUNNING":
            await asyncio.sleep(0.01)
    status = await turn.status()
    if status.phase != "COMPLETED":
        assert "cannot clean up" in " ".join(status.why)


@pytest.mark.rule(1)
@pytest.mark.rule(5)
async def test_a_host_taken_for_dead_goes_on_as_a_new_incarnation(cell: Cell) -> None:
    """Its Runs are fenced, another finishes them, and it takes up work again by itself."""
    stuck, heir = Gate(), Gate()
    heir.open.set()
    first = await cell.runtime(function(stuck))
    turn = await (await opened(first)).submit("r1", "x")
    await until(lambda: stuck.entered == 1, "it runs")
    assert first.execution is not None
    old = first.execution.host.id
    await asyncio.to_thread(
        write, first, f"update host set state = 'RELEASED', released_at = 1 where id = '{old}'"
    )
    await until(
        lambda: first.execution is not None and first.execution.host.id != old, "it registers anew"
    )
    stuck.open.set()
    second = await cell.runtime(function(heir))
    assert (await soon((await second.get_turn(turn.id)).result())).text == "done x"
    await second.close()
    again = await (await opened(first)).submit("r2", "y")
    assert (await soon(again.result())).text == "done y"


@pytest.mark.capability("C3.2")
@pytest.mark.law(5)
async def test_auxiliary_answers_finalization_and_their_reads_are_not_asked_for_again(
    cell: Cell,
) -> None:
    """Each step stands before the next begins: a host that dies within a step repeats that one."""
    hands, asked = FakeHands(), list[str]()
    held, hold = asyncio.Event(), asyncio.Event()

    async def ask(what: str) -> str:
        asked.append(what)
        return f"{what} {asked.count(what)}"

    async def publish(text: str) -> str:
        asked.append("publish")
        held.set()
        await hold.wait()
        return text

    async def body(ctx: Context, input: Message) -> str:
        title = await ctx.step("title", ask, "title")
        seen = await ctx.call("echo", text=title)
        notes = await ctx.step("notes", ask, "workspace notes")
        closing = await ctx.step("closing", ask, "closing words")
        told = f"{title}, {seen}, {notes}, {closing}"
        return str(await ctx.step("publish", publish, told))

    agent = function(body, tools=catalog())
    first = await cell.runtime(agent, hands=hands)
    turn = await (await opened(first)).submit("r1", "x")
    (execution,) = await hands.asked()
    await hands.succeed(execution)
    await soon(held.wait())
    await crash(first)
    hold.set()
    found = await (await cell.runtime(agent, hands=hands)).get_turn(turn.id)
    text = (await soon(found.result())).text
    assert text.startswith("title 1, ") and text.endswith("workspace notes 1, closing words 1")
    assert asked == ["title", "workspace notes", "closing words", "publish", "publish"]
