"""What stands committed together, what outlives a failure, and what a Turn says of calls that did not simply succeed."""

import asyncio
import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import pytest

from nerve.brain.agents.models import ModelAnswer, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.handles import Session, Thread, Turn
from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.runtime import DurableRuntime
from nerve.brain.schedule.failures import Failure
from nerve.brain.state.recovery import RecoveryPolicy
from nerve.brain.state.turn import TurnPhase
from nerve.common import faults
from nerve.common.broker.memory import MemoryBroker
from nerve.common.lease import Release
from nerve.common.lease import release as lease_release
from nerve.protocol.canonical import digest
from nerve.protocol.errors import Conflict, LedgerUnavailable, NerveError, Unavailable, WrongState
from nerve.protocol.identity import SessionKey
from support.waiting import until
from support.whole import QUICK, Whole, whole

TOGETHER = """
create table seen (what text, id text, batch integer);
create trigger journal_seen after insert on journal begin
  insert into seen select 'checkpoint', new.step, sum(batch) from writer; end;
create trigger intent_seen after insert on intent begin
  insert into seen select 'intent', new.origin_step, sum(batch) from writer; end;
create trigger applied_seen after update of applied_at on intent when new.applied_at is not null begin
  insert into seen select 'applied', new.applied_step, sum(batch) from writer; end;
create trigger outbox_seen after insert on outbox begin
  insert into seen select 'command', new.id, sum(batch) from writer; end;
"""


def batches(here: Whole, what: str, like: str = "%") -> dict[str, set[int]]:
    """By what was written: the transactions (batch numbers of all writers) in which it was."""
    query = f"select id, batch from seen where what = '{what}' and id like '{like}'"
    found: dict[str, set[int]] = {}
    for row in here.rows("brain", query):
        found.setdefault(row["id"], set()).add(row["batch"])
    return found


@pytest.mark.law(2)
@pytest.mark.capability("D2.2", "D9.2")
async def test_checkpoint_intent_and_command_are_one_transaction_and_so_is_an_application(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        here.execute("brain", TOGETHER)
        turn = await here.submit("echo prove")
        await turn.result(20)
        calls = await turn.tools()
        checkpoints, intents = batches(here, "checkpoint"), batches(here, "intent")
        applied, commands = batches(here, "applied"), batches(here, "command", "%/start")
        assert {call.origin_step for call in calls} == set(intents)
        for call in calls:
            assert intents[call.origin_step] == checkpoints[call.origin_step]
            assert commands[f"{call.execution}/start"] == checkpoints[call.origin_step]
            assert call.applied_step is not None and call.applied_at is not None
            assert applied[call.applied_step] == checkpoints[call.applied_step]


@pytest.mark.capability("D16.3", "D16.5")
async def test_why_tells_a_proven_failure_from_an_exception_that_proves_nothing(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        turn = await here.submit("prove declared throw odd")
        await turn.result(20)
        names = [call.execution for call in await turn.tools()]
        _, proven, declared, thrown, odd = (await turn.status()).why
        assert proven.startswith(f"prove ({names[0]}) proved by nerve.protocol.errors.ToolFailed")
        assert declared.startswith(f"declared ({names[1]}) proved by builtins.KeyError")
        assert thrown.startswith(f"throw ({names[2]}) raised, which proves nothing")
        assert "its effect is unconfirmed" in thrown
        assert odd.startswith(f"odd ({names[3]}) took effect and its result could not be stored")


@pytest.mark.capability("C5.1", "C5.8")
async def test_requests_of_one_run_and_runs_of_a_recovery_are_counted_apart(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        turn = await here.submit("fail")
        await until_recovery(turn)
        status = await turn.status()
        assert status.recovery is not None
        assert (status.recovery.failures, status.recovery.limit) == (1, 3)
        assert "the model is away" in status.recovery.reason
        await turn.cancel("c-1")
        await turn.result(20)
        runs = await turn.list_runs()
        assert [each.state.value for each in runs][0] == "RETRYING"
        assert here.rows("brain", "select * from receipt") == []


async def until_recovery(turn: Turn) -> None:
    async with asyncio.timeout(20):
        while (await turn.status()).recovery is None:
            await asyncio.sleep(0.01)


@pytest.mark.capability("C5.10")
@pytest.mark.report("U15")
async def test_where_nothing_can_be_recorded_the_turn_goes_on_from_its_last_state(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        turn = await here.submit("hold")
        await until(lambda: here.worker.running, "the tool runs")
        lock = sqlite3.connect(here.place / "state" / "brain.db", isolation_level=None)
        lock.execute("begin immediate")
        here.gate.set()
        # Whatever the Brain wants to write now has to wait: results, claims, failures, scans.
        await asyncio.sleep(0.5)
        assert (await turn.status()).phase is TurnPhase.WAITING
        lock.execute("rollback")
        lock.close()
        result = await turn.result(30)
        assert (result.phase, result.text) == (TurnPhase.COMPLETED, "the end")
        (call,) = await turn.tools()
        assert call.attempt == 1


@pytest.mark.capability("C5.10")
async def test_a_commit_that_fails_is_made_good_by_the_next_run(tmp_path: Path) -> None:
    async with whole(tmp_path) as here:
        faults.arm("brain.advance.before_commit=raise@2")
        try:
            turn = await here.submit("echo")
            result = await turn.result(30)
        finally:
            faults.disarm()
        assert (result.phase, result.text) == (TurnPhase.COMPLETED, "the end")
        assert len(await turn.tools()) == 1


@pytest.mark.capability("A4.1")
async def test_a_handle_is_an_identity_and_nothing_else(tmp_path: Path) -> None:
    names = {kind: {each.name for each in fields(kind)} for kind in (Session, Thread, Turn)}
    assert names == {
        Session: {"runtime", "key"},
        Thread: {"runtime", "key"},
        Turn: {"runtime", "thread", "id"},
    }
    async with whole(tmp_path) as here:
        turn = await here.submit("echo")
        same = await here.runtime.get_turn(turn.id)
        assert same == turn
        assert here.runtime.get_session(SessionKey("acme", "s-1")).key == turn.thread.session_key


@pytest.mark.capability("C2.1", "C2.2")
async def test_a_frame_says_what_it_is_and_its_digest_names_the_one_before_it(
    tmp_path: Path,
) -> None:
    async with whole(tmp_path) as here:
        await (await here.submit("echo")).result(20)
        journal = here.rows("brain", "select * from journal order by position")
        assert [row["position"] for row in journal] == list(range(1, len(journal) + 1))
        (thread,) = here.rows("brain", "select * from thread")
        assert (thread["position"], thread["digest"]) == (len(journal), journal[-1]["digest"])
        (definition,) = here.rows("brain", "select * from definition")
        assert definition["id"] == thread["definition"]
        assert (definition["agent"], definition["version"]) == ("whole", "1")
        assert definition["harness"] and definition["state_version"]
        assert definition["digest"] == digest(definition["bindings"].encode())


@pytest.mark.capability("G7.1", "G7.2")
async def test_what_was_handed_in_stays_open_and_what_was_made_is_closed(tmp_path: Path) -> None:
    broker = MemoryBroker()
    await broker.open()
    async with LocalBackend.open(tmp_path / "other") as backend:
        async with DurableRuntime(backend, broker=broker) as runtime:
            await runtime.list_turns()
        # The runtime is closed; the backend and the broker are not.
        async with DurableRuntime(backend) as again:
            assert await again.list_turns() == []
        await broker.publish("still", [b"open"])
        ledger = backend.ledger
    with pytest.raises((LedgerUnavailable, WrongState, sqlite3.ProgrammingError)):
        async with DurableRuntime(backend) as late:
            await late.session(SessionKey("acme", "s"), agent="whole")
    assert ledger.commits >= 0
    await broker.close()


@pytest.mark.report("U95")
async def test_thousands_of_waiters_delay_no_heartbeat(tmp_path: Path) -> None:
    quick = replace(QUICK, lease_seconds=3.0, heartbeat_seconds=0.1)
    async with whole(tmp_path, settings=quick) as here:
        turn = await here.submit("hold")
        waiters = [asyncio.create_task(turn.result(60)) for _ in range(2_000)]
        assert here.runtime.execution is not None
        hosts = [here.runtime.execution.host, here.worker.host]
        beats = "select counter from heartbeat"
        before = here.rows("brain", beats)[0]["counter"]
        await until(
            lambda: here.rows("brain", beats)[0]["counter"] >= before + 15, "it beat on", 20
        )
        assert all(host.alive() and host.beat_late_seconds < 1.0 for host in hosts)
        here.gate.set()
        ended = await asyncio.gather(*waiters)
        assert {each.phase for each in ended} == {TurnPhase.COMPLETED}


@pytest.mark.capability("C5.7")
@pytest.mark.parametrize("error", [Unavailable("away"), Conflict("another was quicker")])
async def test_internal_unavailable_and_conflict_are_tried_again(
    tmp_path: Path, error: NerveError
) -> None:
    raised: list[NerveError] = []

    def say(request: ModelRequest) -> ModelAnswer:
        if not raised:
            raised.append(error)
            raise error
        return ModelAnswer(text="the end")

    agent = ReactAgent("once", version="1", model=ScriptedModel(say))
    policy = RecoveryPolicy(first_seconds=0.01)
    async with LocalBackend.open(tmp_path / "state") as backend:
        async with DurableRuntime(backend, agents=[agent], policy=policy) as runtime:
            session = await runtime.session(SessionKey("acme", "s"), agent="once")
            turn = await session.submit("r", "go")
            assert (await turn.result(20)).text == "the end"
            assert [run.state.value for run in await turn.list_runs()] == ["RETRYING", "FINISHED"]


@pytest.mark.law(4)
@pytest.mark.capability("C5.9", "D8.4")
async def test_no_classifier_of_a_host_makes_an_unknown_effect_repeat(tmp_path: Path) -> None:
    asked: list[BaseException] = []

    def anything_goes(error: BaseException) -> Failure:
        asked.append(error)
        return Failure(retryable=True)

    async with whole(tmp_path, classify=anything_goes) as here:
        turn = await here.submit("hold")
        await until(lambda: here.worker.running, "the tool runs")
        release = Release(
            host=here.worker.host.id, now=here.runtime.now(), also=here.worker.assembly.release
        )
        await here.worker.ledger.commit(lease_release, release)
        await until_unknown(turn)
        here.gate.set()
        await asyncio.sleep(0.3)
        (call,) = await turn.tools()
        status = await turn.status()
        assert (call.outcome, call.attempt, status.phase) == ("UNKNOWN", 1, TurnPhase.WAITING)
        assert asked == []


async def until_unknown(turn: Turn) -> None:
    async with asyncio.timeout(20):
        while [call.outcome for call in await turn.tools()] != ["UNKNOWN"]:
            await asyncio.sleep(0.01)
