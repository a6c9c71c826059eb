"""A Brain by itself, without Hands and without a broker, killed inside a tool of its own."""

from pathlib import Path

import pytest

from nerve.brain.handles import Turn
from nerve.brain.state.turn import TurnPhase
from nerve.protocol.events import PublicEvent
from support.apart import apart, client
from support.waiting import until

APP = Path(__file__).parent / "app.py"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def told(turn: Turn) -> list[PublicEvent]:
    """The events about tools."""
    return [event async for event in turn.events() if event.type.startswith("tool.")]


@pytest.mark.capability("C15.1", "C15.2", "F11.1", "F11.2")
@pytest.mark.law(4)
async def test_a_local_tool_that_its_brain_died_in_is_shown_as_unknown_and_not_repeated(
    tmp_path: Path,
) -> None:
    async with apart(tmp_path, APP) as at:
        brain = await at.brain()
        async with client(at) as here:
            turn = await here.submit("s", "alone", "note")
            await until(lambda: at.effects, "the tool was entered")
            (running,) = await turn.tools()
            assert (running.outcome, running.completed_at) == ("STARTED", None)
            await brain.kill()
            await at.brain()
            result = await turn.result(30)
            assert result.phase is TurnPhase.COMPLETED
            assert "is unknown" in result.text and "was not run again" in result.text
            assert at.effects == ["w"]
            (call,) = await turn.tools()
            assert (call.tool, call.execution, call.route) == ("note", "", "local")
            assert (call.outcome, call.effect.value) == ("UNKNOWN", "unconfirmed")
            assert call.completed_at is not None and call.applied_at is not None
            assert call.requested_at < call.completed_at <= call.applied_at
            events = await told(turn)
            assert [event.type for event in events] == ["tool.requested", "tool.received"]
            assert all("execution_id" not in event.payload for event in events)
            assert [run.state.value for run in await turn.list_runs()] == ["LOST", "FINISHED"]
        assert list(at.state.glob("hands-*.db")) == []


@pytest.mark.capability("C15.1", "C15.2")
async def test_a_local_tool_whose_start_may_be_repeated_runs_again(tmp_path: Path) -> None:
    async with apart(tmp_path, APP) as at:
        brain = await at.brain()
        async with client(at) as here:
            turn = await here.submit("s", "alone", "again")
            await until(lambda: at.effects, "the tool was entered")
            await brain.kill()
            (tmp_path / "go").touch()
            await at.brain()
            assert (await turn.result(30)).text == "noted"
            assert at.effects == ["w", "w"]
            (call,) = await turn.tools()
            assert (call.outcome, call.text) == ("SUCCEEDED", "noted")
