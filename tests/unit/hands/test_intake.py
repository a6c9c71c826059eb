"""What reaches a worker: policy, late and forged commands, settlements, and what is counted."""

from pathlib import Path

import pytest

from nerve.hands import AuthorizationRequest
from nerve.protocol.catalog import Catalog
from nerve.protocol.commands import ReplyTo, StartCommand
from nerve.protocol.controls import Question, SettledExecutions
from nerve.protocol.execution import ExecutionState
from nerve.protocol.updates import Absence
from support.hands_place import Bench, place
from support.hands_world import CELL, Asker
from support.waiting import until

S = ExecutionState


@pytest.mark.capability("D14.1")
@pytest.mark.rule(15)
async def test_authorization_is_asked_before_anything_is_written(tmp_path: Path) -> None:
    bench = Bench()
    seen: list[tuple[AuthorizationRequest, int]] = []
    allowed = [False]

    def policy(request: AuthorizationRequest) -> bool:
        seen.append((request, units()))
        return allowed[0]

    async with place(tmp_path, bench.catalog(), authorize=policy) as here:

        def units() -> int:
            return here.worker.ledger.units

        before = here.worker.ledger.units
        command = here.asker.call("act")
        await here.executor.start([here.asker.seal(command)])
        request, at = seen[0]
        assert (request.tool, request.namespace, at) == ("act", "acme", before)
        absent = await here.told.absence(command.execution)
        assert (absent.absence, absent.code) == (Absence.REFUSED, "unauthorized")
        assert (await here.count("execution"), await here.count("refused")) == (0, 1)
        allowed[0] = True
        await here.executor.start([here.asker.seal(command)])
        await here.told.until(
            lambda told: len(told.absences[command.execution]) == 2, "it was refused again"
        )
        assert bench.effects == []


async def test_a_policy_that_fails_allows_nothing(tmp_path: Path) -> None:
    bench = Bench()

    def policy(request: AuthorizationRequest) -> bool:
        raise RuntimeError("the policy server is odd")

    async with place(tmp_path, bench.catalog(), authorize=policy) as here:
        execution = await here.start("act")
        assert (await here.told.absence(execution)).absence is Absence.REFUSED
        assert bench.effects == []


@pytest.mark.rule(17)
async def test_a_late_command_is_recorded_as_not_admitted(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        command = here.asker.call("act").model_copy(update={"admit_before": 1})
        await here.executor.start([here.asker.seal(command)])
        absent = await here.told.absence(command.execution)
        assert (absent.absence, absent.code) == (Absence.NOT_ADMITTED, "expired")
        assert (await here.count("refused"), bench.effects) == (1, [])


@pytest.mark.rule(12)
async def test_a_forged_request_under_a_known_id_is_refused_by_name(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        command = here.asker.call("act")
        await here.executor.start([here.asker.seal(command)])
        await here.told.end(command.execution)
        changes = {"request_digest": "sha256:" + "0" * 64}
        forged: StartCommand = command.model_copy(update=changes)
        await here.executor.start([here.asker.seal(forged)])
        absent = await here.told.absence(command.execution)
        assert (absent.absence, absent.code) == (Absence.REFUSED, "request_conflict")
        assert bench.effects == [command.execution]


@pytest.mark.rule(17)
async def test_a_settled_execution_is_reduced_and_still_not_run_again(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        command = here.asker.call("act")
        await here.executor.start([here.asker.seal(command)])
        await here.told.end(command.execution)
        question = Question(execution=command.execution, known_sequence=1)
        body = SettledExecutions(settled=(question,), reply_to=ReplyTo(cell=CELL))
        await here.executor.control([here.asker.seal(body)])
        assert (await here.row(command.execution))["command"] is None
        await here.executor.start([here.asker.seal(command)])
        snapshot = await here.told.snapshot(command.execution)
        assert (snapshot.state, snapshot.result, len(bench.effects)) == (S.SUCCEEDED, None, 1)


@pytest.mark.rule(14)
async def test_old_commands_that_arrive_late_ask_the_brain_to_wait_with_repeats(
    tmp_path: Path,
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        command = here.asker.call("act").model_copy(update={"issued_at": 1})
        await here.executor.start([here.asker.seal(command)])
        assert (await here.told.end(command.execution)).older_commands_arriving is True
        here.worker.assembly.speaker.late_until = 0  # As five seconds later.
        fresh = await here.start("act")
        assert (await here.told.end(fresh)).older_commands_arriving is False


async def test_the_metrics_say_what_the_ledger_says(tmp_path: Path) -> None:
    bench = Bench()
    bench.gate.set()
    async with place(tmp_path, bench.catalog()) as here:
        commands = [here.asker.call("hold") for _ in range(30)]
        await here.executor.start([here.asker.seal(each) for each in commands])
        await here.told.ends(each.execution for each in commands)
        await until(lambda: here.worker.running == 0, "all runs are over")
        metrics = here.worker.metrics
        assert await here.count("execution where state = 'SUCCEEDED'") == 30
        assert metrics.executions.value("hands", "SUCCEEDED", "completed") == 30
        assert metrics.running.value("hands") == 0


@pytest.mark.report("U128")
async def test_a_failing_tool_leaves_nothing_behind_in_memory(tmp_path: Path) -> None:
    catalog = Catalog()

    @catalog.tool
    async def fail() -> str:
        raise ValueError("x" * 1000)

    async with place(tmp_path, catalog) as here:
        for _ in range(10):
            commands = [here.asker.call("fail") for _ in range(50)]
            await here.executor.start([here.asker.seal(each) for each in commands])
            await here.told.ends(each.execution for each in commands)
        await until(lambda: here.worker.running == 0, "all runs are over")
        parts = here.worker.assembly
        await until(lambda: parts.relay.depth() == 0, "all updates are confirmed")
        assert (parts.engine.unfinished, parts.progresses.watched) == (0, 0)


@pytest.mark.report("U50")
async def test_a_control_of_another_namespace_reads_and_changes_nothing(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        execution = await here.start("hold")
        await until(lambda: bench.effects == [execution], "the tool was entered")
        stranger = Asker(here.asker.catalog, namespace="other")
        questions = (stranger.query, stranger.cancel, stranger.replay, stranger.read_output)
        await here.executor.control([ask(execution) for ask in questions])
        row = await here.row(execution)
        assert (row["state"], row["cancel_requested_at"]) == (S.STARTED, None)
        assert await here.count("refused") == 4
        bench.gate.set()
        await here.told.end(execution)
        assert (here.told.snapshots, here.told.outputs) == ({}, {})
