"""Cancelled at every boundary of a Turn: it ends once, and what it leaves is valid input for a model."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.common import faults
from nerve.protocol.controls import CancelExecution
from nerve.protocol.errors import WrongState
from nerve.protocol.execution import ExecutionState
from support.brain_cell import Cell, catalog, opened
from support.fake_hands import FakeHands
from support.waiting import running, soon

POINTS = [
    "brain.claim.before_commit",
    "brain.claim.after_commit",
    "brain.run.restored",
    "brain.run.before_advance",
    "brain.run.after_advance",
    "brain.advance.before_commit",
    "brain.advance.after_commit",
    "common.outbox.before_publish",
    "common.outbox.after_publish",
    "brain.intake.received",
    "brain.deliver.before_commit",
    "brain.deliver.after_commit",
    "brain.intake.committed",
]


def check(messages: Sequence[Any]) -> None:
    """Each call is answered once, right after the answer that made it, before anybody speaks."""
    open_calls: list[str] = []
    for each in messages:
        if each["role"] == "tool":
            open_calls.remove(each["call"])
            continue
        assert open_calls == [], f"{each['role']} speaks before {open_calls} have results"
        open_calls = [call["id"] for call in each.get("calls", [])]
    assert open_calls == []


@pytest.mark.report("U68")
@pytest.mark.capability("B4.2")
@pytest.mark.parametrize("hit", [1, 2])
@pytest.mark.parametrize("point", POINTS)
async def test_a_cancel_at_any_boundary_leaves_a_history_that_a_model_accepts(
    cell: Cell, point: str, hit: int
) -> None:
    hands = FakeHands()
    requests: list[ModelRequest] = []

    def answers(request: ModelRequest) -> ModelAnswer:
        requests.append(request)
        said = cast("Sequence[Any]", request.messages)
        if said[-1]["role"] == "user" and "first" in str(said[-1]):
            calls = [ModelCall(tool="echo", arguments={"text": f"{n}"}) for n in range(2)]
            return ModelAnswer(text="looking", calls=calls)
        return ModelAnswer(text="done")

    agent = ReactAgent("agent", model=ScriptedModel(answers), tools=catalog())
    runtime = await cell.runtime(agent, hands=hands)
    session = await opened(runtime)
    cancels: list[asyncio.Task[object]] = []
    hits = 0

    def reached() -> None:
        nonlocal hits
        hits += 1
        if hits == hit:
            cancels.append(asyncio.ensure_future(first.cancel("c1")))

    async def answer() -> None:
        """Hands finish what they start, and cancel what they are asked to."""
        done: set[str] = set()
        while True:
            asked = [each.execution for each in hands.controls_of(CancelExecution)]
            for execution in {*hands.executions, *asked} - done:
                done.add(execution)
                state = ExecutionState.CANCELLED if execution in asked else ExecutionState.SUCCEEDED
                await hands.send(hands.update(execution, state))
            await asyncio.sleep(0.002)

    first = await (await session.open_thread("t")).submit("r1", "first")
    faults.hook(point, reached)
    async with running(answer()):
        result = await soon(first.result())
        faults.disarm()
        assert hits, "the boundary was reached"
        if cancels:
            await asyncio.wait(cancels)
            assert cancels[0].exception() is None or isinstance(cancels[0].exception(), WrongState)
        assert result.phase in ("COMPLETED", "CANCELLED")
        second = await session.thread("t").submit("r2", "second")
        assert (await soon(second.result())).text == "done"
    for request in requests:
        check(cast("Sequence[Any]", request.messages))
    events = (await session.events(limit=1000, thread="t", turn=first.id)).events
    ends = [each.type for each in events if each.type in ("turn.completed", "turn.cancelled")]
    assert len(ends) == 1


def test_the_check_finds_a_call_without_its_result() -> None:
    answer = {"role": "assistant", "calls": [{"id": "a"}, {"id": "b"}]}
    for wrong in (
        [answer],
        [answer, {"role": "tool", "call": "a"}],
        [answer, {"role": "user"}, {"role": "tool", "call": "a"}, {"role": "tool", "call": "b"}],
    ):
        with pytest.raises(AssertionError):
            check(wrong)
