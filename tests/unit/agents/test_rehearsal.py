"""The testing kit: an agent is tried in memory, and a crash that changes something is named."""

from typing import Any

import pytest

from nerve.brain.agents.function import Context, function_agent
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.harness import Frame, Parked
from nerve.brain.testing import ContractBroken, rehearse, rehearse_crashes
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from nerve.protocol.errors import UnknownTool
from nerve.protocol.execution import Effect
from nerve.protocol.signature import ToolContext

SCRIPT: list[Any] = [
    {"calls": [{"tool": "forecast", "arguments": {"city": "Oslo"}}]},
    {"when": {"tool": "forecast"}, "text": "It will be $last."},
]


def weather() -> tuple[ReactAgent, Catalog]:
    tools = Catalog()

    @tools.tool(failures=[LookupError])
    async def forecast(city: str, context: ToolContext) -> str:
        await context.write("looking")
        if city != "Oslo":
            raise LookupError(city)
        return f"sunny at {context.attempt}"

    return ReactAgent("weather", model=ScriptedModel(SCRIPT), tools=tools), tools


def wet(city: str) -> str:
    return f"wet in {city}"


async def test_an_agent_is_rehearsed_with_its_tools_or_with_stubs() -> None:
    agent, tools = weather()
    turn = await rehearse(agent, "Will it rain in Oslo?", tools=tools)
    assert turn.text == "It will be sunny at 1."
    assert [(call.tool, dict(call.arguments)) for call in turn.calls] == [
        ("forecast", {"city": "Oslo"})
    ]
    turn = await rehearse(agent, "Will it rain?", stubs={"forecast": wet})
    assert turn.text == "It will be wet in Oslo."


async def test_crashes_are_tried_at_every_place() -> None:
    agent, tools = weather()
    assert await rehearse_crashes(agent, "Will it rain?", tools=tools) >= 4


async def test_an_agent_that_counts_on_its_memory_is_found() -> None:
    seen: list[str] = []

    @function_agent("forgetful")
    async def forgetful(ctx: Context, input: Message) -> str:
        seen.append(input.text)
        await ctx.step("once", str, 1)
        return f"seen {len(seen)} times"

    with pytest.raises(ContractBroken, match="after a crash at place 1"):
        await rehearse_crashes(forgetful, "Go")


async def test_a_tool_without_a_function_is_named() -> None:
    agent, _ = weather()
    with pytest.raises(UnknownTool, match="forecast"):
        await rehearse(agent, "Will it rain?")


async def test_a_declared_failure_has_no_effect() -> None:
    _, tools = weather()

    @function_agent("asks", tools=tools)
    async def asks(ctx: Context, input: Message) -> str:
        outcome = await ctx.call("forecast", city="Rome").outcome()
        assert outcome.effect is Effect.NONE
        return outcome.text

    text = "The tool failed and changed nothing: Rome"
    assert (await rehearse(asks, "Go", tools=tools)).text == text


async def test_a_harness_that_touches_the_frame_is_found() -> None:
    class Careless(ReactAgent):
        async def advance(self, frame: Frame, facts: Any, host: Any) -> Any:
            outcome = await super().advance(frame, facts, host)
            if isinstance(outcome, Parked):
                frame.entries.extend(outcome.checkpoint.entries)
            return outcome

    _, tools = weather()
    agent = Careless("weather", model=ScriptedModel(SCRIPT), tools=tools)
    with pytest.raises(ContractBroken, match="may not touch the frame"):
        await rehearse(agent, "Go", tools=tools)
