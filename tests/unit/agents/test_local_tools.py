"""Local tools of ReactAgent: they run in the Brain, and none is repeated without saying so."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.testing import Conductor, MemoryHost
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import BadInput, ToolFailed
from nerve.protocol.signature import ToolContext


def told(conductor: Conductor) -> list[str]:
    entries = cast("list[dict[str, Any]]", conductor.frame().entries)
    return [entry["text"] for entry in entries if entry["role"] == "tool"]


def local(ran: list[str], **options: Any) -> Callable[[], Catalog]:
    def make() -> Catalog:
        catalog = Catalog()

        @catalog.tool(**options)
        def ring(bell: str) -> str:
            ran.append(bell)
            if bell == "broken":
                raise ToolFailed("there is no bell")
            if bell == "cracked":
                raise RuntimeError("it fell \x00 \ud800")
            return bell * (1_000_000 if bell == "loud" else 1)

        return catalog

    return make


def local_conductor(bell: str, ran: list[str], **options: Any) -> Conductor:
    script: list[Any] = [{"call": {"tool": "ring", "arguments": {"bell": bell}}}, "Done."]
    make = local(ran, **options)
    return Conductor(lambda: ReactAgent("a", model=ScriptedModel(script), local_tools=make()))


@pytest.mark.capability("C15.1", "D16.1")
async def test_a_local_tool_runs_in_the_brain_without_a_park() -> None:
    ran: list[str] = []
    conductor = local_conductor("small", ran)
    ended = await conductor.turn("Go")
    assert (ended.text, ran, conductor.runs) == ("Done.", ["small"], 1)
    assert list(ended.host.receipts) == [
        "model:1",
        "tool:call_1_1:started",
        "tool:call_1_1:ended",
        "model:2",
    ]


@pytest.mark.capability("C15.2")
@pytest.mark.law(4)
async def test_a_local_tool_that_may_have_started_is_reported_and_not_repeated() -> None:
    outcomes: set[tuple[int, bool]] = set()
    for place in range(1, 40):
        ran: list[str] = []
        host = MemoryHost(crash_at=place)
        conductor = local_conductor("small", ran)
        assert (await conductor.turn("Go", host=host)).text == "Done."
        assert len(ran) <= 1
        outcomes.add((len(ran), "is unknown; do not assume either" in told(conductor)[0]))
    assert outcomes == {(1, False), (1, True), (0, True)}


async def test_a_local_tool_that_may_be_repeated_is_never_unknown() -> None:
    for place in range(1, 30):
        ran: list[str] = []
        host = MemoryHost(crash_at=place)
        conductor = local_conductor("small", ran, idempotent_start=True)
        await conductor.turn("Go", host=host)
        assert 1 <= len(ran) <= 2
        assert told(conductor) == ["small"]


@pytest.mark.capability("D16.2", "D16.3", "D16.4")
@pytest.mark.report("U105")
@pytest.mark.parametrize(
    ("bell", "text"),
    [
        ("broken", "The tool failed and changed nothing: there is no bell"),
        ("cracked", "The tool failed and its effect is unconfirmed; it may have happened"),
        ("loud", "The tool ran and its result could not be stored"),
    ],
)
async def test_a_local_tool_that_fails_tells_the_model_its_effect(bell: str, text: str) -> None:
    conductor = local_conductor(bell, [])
    assert (await conductor.turn("Go")).text == "Done."
    assert told(conductor)[0].startswith(text)


def test_a_local_tool_cannot_take_what_only_hands_can_give() -> None:
    catalog = Catalog()

    @catalog.tool
    def write(context: ToolContext) -> str:
        return context.execution

    with pytest.raises(BadInput, match="takes a ToolContext"):
        ReactAgent("a", model=ScriptedModel(["x"]), local_tools=catalog)
