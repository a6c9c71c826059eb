"""Builds of different protocol versions as Brain and Hands, in real processes, also replaced in the middle of a Turn."""

from pathlib import Path

import pytest

from nerve.brain.handles import Turn
from nerve.brain.state.turn import TurnPhase
from nerve.protocol.version import BUILT
from support.apart import Apart, apart, client
from support.waiting import until

APP = Path(__file__).parent / "app.py"
OURS = str(BUILT)
MORE = f"{BUILT.major}.{BUILT.minor + 1}"
FOREIGN = f"{BUILT.major + 1}.0"
ANSWER = '{"heard":"é"}'
VERSION = "NERVE_PROTOCOL_VERSION"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


async def ends_well(at: Apart, turn: Turn, tool: str, attempts: int = 1) -> None:
    result = await turn.result(30)
    expected = (TurnPhase.COMPLETED, ANSWER, None)
    assert (result.phase, result.text, result.failure) == expected
    (call,) = await turn.tools()
    effects = [f"{tool} {call.execution} {attempt}" for attempt in range(1, attempts + 1)]
    assert at.effects == effects


def versions_on_the_wire(at: Apart) -> tuple[bytes, bytes]:
    """Of the command as Hands keep it, and of the last update as they sent it."""
    (command,) = at.rows("hands-hands", "select command from execution")
    reports = at.rows("hands-hands", "select envelope from report order by sequence desc")
    return command["command"], reports[0]["envelope"]


@pytest.mark.capability("E8.3")
@pytest.mark.parametrize(("brain", "hands"), [(MORE, OURS), (OURS, MORE)])
async def test_a_minor_version_more_works_with_this_one_on_either_side(
    tmp_path: Path, brain: str, hands: str
) -> None:
    async with apart(tmp_path, APP) as at:
        await at.brain(**{VERSION: brain})
        await at.hands(**{VERSION: hands})
        async with client(at) as here:
            turn = await here.submit("s-1", "skewed", "echo")
            await ends_well(at, turn, "echo")
        command, update = versions_on_the_wire(at)
        assert f'"version":"{brain}"'.encode() in command
        assert f'"version":"{hands}"'.encode() in update
        # The newer one did say something that the older one cannot know.
        newer = command if brain == MORE else update
        assert newer.count(b'"x_since_minor":1') == 2
        assert at.rows("brain", "select * from refused") == []
        assert at.rows("hands-hands", "select * from refused") == []


@pytest.mark.capability("E8.3", "C1.2")
@pytest.mark.parametrize(("before", "after"), [(OURS, MORE), (MORE, OURS)])
async def test_a_brain_of_another_minor_goes_on_with_a_turn_in_its_middle(
    tmp_path: Path, before: str, after: str
) -> None:
    async with apart(tmp_path, APP) as at:
        first = await at.brain(**{VERSION: before})
        await at.hands()
        async with client(at) as here:
            turn = await here.submit("s-1", "skewed", "hold")
            await until(lambda: at.effects, "the tool runs")
            await first.kill()
            await at.brain(**{VERSION: after})
            (tmp_path / "go").touch()
            await ends_well(at, turn, "hold")


@pytest.mark.capability("E8.3")
@pytest.mark.parametrize(("before", "after"), [(OURS, MORE), (MORE, OURS)])
async def test_hands_of_another_minor_go_on_with_what_the_former_ones_admitted(
    tmp_path: Path, before: str, after: str
) -> None:
    async with apart(tmp_path, APP) as at:
        await at.brain()
        first = await at.hands(**{VERSION: before})
        async with client(at) as here:
            turn = await here.submit("s-1", "skewed", "again")
            await until(lambda: at.effects, "the tool runs")
            await first.kill()
            (tmp_path / "go").touch()
            await at.hands(**{VERSION: after})
            await ends_well(at, turn, "again", attempts=2)


@pytest.mark.capability("E8.3")
@pytest.mark.report("U50")
@pytest.mark.law(10)
@pytest.mark.parametrize(("brain", "hands"), [(FOREIGN, OURS), (OURS, FOREIGN)])
async def test_another_major_is_refused_by_name_and_the_turn_says_what_it_waits_for(
    tmp_path: Path, brain: str, hands: str
) -> None:
    async with apart(tmp_path, APP) as at:
        await at.brain(**{VERSION: brain})
        stranger = await at.hands(**{VERSION: hands})
        async with client(at) as here:
            turn = await here.submit("s-1", "skewed", "echo")
            refusals = "select code, reason, head, topic from refused order by id"
            await until(lambda: at.rows("hands-hands", refusals), "the command was refused")
            refused = at.rows("hands-hands", refusals)[0]
            assert refused["code"] == "protocol_version"
            assert f"version {brain} does not work with version {hands}" in refused["reason"]
            assert f'"execution":"{turn.id}.x1"'.encode() in refused["head"]
            assert at.rows("hands-hands", "select * from execution") == []

            asked = "select inquiries from intent"
            await until(lambda: at.rows("brain", asked)[0]["inquiries"] > 1, "it was repeated")
            status = await turn.status()
            assert status.phase is TurnPhase.WAITING
            (why,) = status.why
            assert "no Hands has confirmed it" in why
            assert f"protocol version {BUILT.major}.x" in why

            # Hands that speak as the Brain does take it up; nobody has to submit again.
            await stranger.stop()
            await at.hands(**{VERSION: brain})
            await ends_well(at, turn, "echo")
