"""A Hands process killed at each of its fault points, restarted, and judged from the outside."""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.hands import ExecutionReconciliation, ExecutionStore, WorkerRuntime
from nerve.protocol.envelope import open_envelope
from nerve.protocol.execution import Effect, ExecutionState, value_result
from nerve.protocol.updates import ExecutionUpdate
from support.hands_child import lines, tools
from support.hands_world import CELL, Asker, Told

S = ExecutionState
TESTS = Path(__file__).parents[2]

POINTS = [
    "hands.intake.before_admit",
    "hands.admit.before_commit",
    "hands.admit.after_commit",
    "hands.intake.admitted",
    "hands.start.before_commit",
    "hands.start.after_commit",
    "hands.engine.started",
    "hands.engine.before_tool",
    "hands.tool.before_call",
    "hands.tool.after_call",
    "hands.engine.after_tool",
    "hands.engine.before_finish",
    "hands.finish.before_commit",
    "sql.before_commit",
    "sql.in_doubt",
    "hands.finish.after_commit",
    "hands.engine.finished",
    "common.outbox.before_publish",
    "common.outbox.after_publish",
    "common.outbox.before_forget",
    "common.outbox.forget.after_commit",
    "common.lease.locked",
    "common.lease.register.after_commit",
]


class Hands:
    """The files of one Hands process and its runs."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "state"
        self.commands = folder / "commands"
        self.updates = folder / "updates"
        self.effects = folder / "effects"
        self.asker = Asker(tools(self.effects))

    def ask(self, tool: str, count: int) -> list[str]:
        calls = [self.asker.call(tool) for _ in range(count)]
        with self.commands.open("ab") as file:
            for call in calls:
                file.write(self.asker.seal(call) + b"\n")
        return [call.execution for call in calls]

    async def run(self, armed: str = "") -> int:
        """The exit code of one run; negative where it was killed."""
        files = (self.directory, self.commands, self.updates, self.effects)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "support.hands_child",
            *map(str, files),
            env={**os.environ, "PYTHONPATH": str(TESTS), "NERVE_FAULTS": armed},
        )
        try:
            async with asyncio.timeout(40):
                return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def ends(self) -> dict[str, ExecutionUpdate]:
        bodies = [open_envelope(raw).body for raw in lines(self.updates)]
        return {
            body.execution: body
            for body in bodies
            if isinstance(body, ExecutionUpdate) and body.state.is_terminal
        }

    def marks(self, kind: str) -> Counter[str]:
        words = [line.decode().split() for line in lines(self.effects)]
        return Counter(word[1] for word in words if word[0] == kind)


def test_every_point_that_is_killed_here_exists() -> None:
    assert set(POINTS) <= set(faults.names())


@pytest.mark.law(1)
@pytest.mark.law(4)
@pytest.mark.capability("D8.1", "D7.2")
@pytest.mark.report("U10", "U16")
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_loses_nothing_doubles_nothing_and_unknown_is_honest(
    tmp_path: Path, point: str
) -> None:
    hands = Hands(tmp_path)
    once, again = hands.ask("once", 12), hands.ask("again", 12)
    assert await hands.run(f"{point}=kill@3" if "lease" not in point else f"{point}=kill") < 0
    assert await hands.run() == 0
    ends, entered, effects = hands.ends(), hands.marks("enter"), hands.marks("effect")
    assert set(ends) == {*once, *again}
    for execution in again:
        assert ends[execution].state is S.SUCCEEDED and effects[execution] >= 1
    for execution in once:
        assert effects[execution] <= 1
        if ends[execution].state is S.SUCCEEDED:
            assert effects[execution] == 1
        else:
            assert (ends[execution].state, ends[execution].effect) == (
                S.UNKNOWN,
                Effect.UNCONFIRMED,
            )
    # UNKNOWN without an entry: killed between the commit of STARTED and the tool, one a slot at most.
    unentered = [each for each in once if ends[each].state is S.UNKNOWN and not entered[each]]
    assert len(unentered) <= 4


@pytest.mark.capability("D8.2", "D8.4")
async def test_the_unknown_outcome_of_a_killed_tool_is_reconciled_from_outside(
    tmp_path: Path,
) -> None:
    hands = Hands(tmp_path)
    [execution] = hands.ask("once", 1)
    assert await hands.run("hands.engine.after_tool=kill") < 0
    assert await hands.run() == 0
    assert hands.ends()[execution].state is S.UNKNOWN
    async with await ExecutionStore.open(hands.directory) as store:
        [view] = await store.unknown()
        work = await store.claim(view.execution, "ada")
        assert work.owner_gone is True
        await store.reconcile(
            work,
            ExecutionReconciliation(
                request_id="fix-1",
                operator="ada",
                evidence="the line stands in the effects file",
                state=S.SUCCEEDED,
                result=value_result("done"),
            ),
        )
    told = Told()
    async with WorkerRuntime(hands.directory, tools(hands.effects)) as worker:
        await worker.local_executor().open(CELL, told.sink)
        update = await told.end(execution)
        assert (update.state, update.sequence) == (S.SUCCEEDED, 2)
    assert hands.marks("effect")[execution] == 1
