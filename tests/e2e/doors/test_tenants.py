"""Another tenant that guesses an execution id learns nothing, stops nothing and blocks nobody."""

from dataclasses import replace
from pathlib import Path

import pytest

from nerve.hands.ledger.records import read_row
from nerve.protocol.execution import ExecutionState
from nerve.protocol.updates import Absence
from support.hands_place import Bench, Place, place


async def refused(here: Place) -> int:
    return await here.count("refused")


@pytest.mark.report("U50", "U59")
@pytest.mark.rule(15)
@pytest.mark.law(10)
async def test_a_command_under_another_tenants_execution_is_refused_and_brings_back_nothing(
    tmp_path: Path,
) -> None:
    made = Bench()
    async with place(tmp_path, made.catalog()) as here:
        command = here.asker.call("act")
        await here.executor.start([here.asker.seal(command)])
        await here.told.end(command.execution)
        evil = replace(here.asker, namespace="evil")
        forged = command.model_copy(update={"namespace": "evil"})
        good = here.asker.call("act")
        # The forged one is alone in being refused: the others of its bundle are taken.
        await here.executor.start([evil.seal(forged), here.asker.seal(good)])
        await here.told.end(good.execution)
        absent = await here.told.absence(command.execution)
        assert (absent.absence, absent.code) == (Absence.REFUSED, "request_conflict")
        assert (await refused(here), len(made.effects)) == (1, 2)
        assert here.told.snapshots[command.execution] == []


@pytest.mark.report("U50", "U59")
@pytest.mark.law(10)
async def test_a_question_or_a_cancel_of_another_tenant_is_refused(tmp_path: Path) -> None:
    made = Bench()
    async with place(tmp_path, made.catalog()) as here:
        execution = await here.start("hold")
        evil = replace(here.asker, namespace="evil")
        messages = [
            evil.query(execution),
            evil.replay(execution),
            evil.read_output(execution),
            evil.cancel(execution),
        ]
        for number, message in enumerate(messages, 1):
            await here.executor.control([message, here.asker.query(execution)])
            assert await refused(here) == number
        row = await here.worker.ledger.read(lambda tx: read_row(tx, execution))
        assert row is not None
        assert (row["state"], row["cancel_requested_at"]) == (ExecutionState.STARTED, None)
        assert here.told.outputs[execution] == []
        made.gate.set()
        assert (await here.told.end(execution)).state is ExecutionState.SUCCEEDED
