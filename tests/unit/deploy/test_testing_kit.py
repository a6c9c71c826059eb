"""The kit that users test their agents with: real engines, virtual time, faults, a directory that lasts."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.why import Reason
from nerve.deploy.testing import VirtualClock, faults, local_runtime
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import BadInput

SCRIPT: list[Mapping[str, Any]] = [
    {"when": {"round": 1}, "calls": [{"tool": "forecast", "arguments": {"city": "Oslo"}}]},
    {"when": {"tool": "forecast"}, "text": "It will be: $last."},
]

tools = Catalog(route="hands")


@tools.tool
async def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"sunny in {city}"


def weather() -> ReactAgent:
    return ReactAgent("weather", version="1", model=ScriptedModel(SCRIPT), tools=tools)


@pytest.mark.capability("H9.1", "G1.1")
async def test_an_agent_answers_on_the_real_engines() -> None:
    async with local_runtime(weather(), tools) as runtime:
        assert await runtime.ask("weather", "Oslo?") == "It will be: sunny in Oslo."
        assert runtime.worker.running == 0


@pytest.mark.capability("G1.2", "A4.2")
async def test_a_directory_that_outlives_the_block_goes_on(tmp_path: Path) -> None:
    async with local_runtime(weather(), tools, directory=tmp_path) as runtime:
        session = await runtime.session("s", "weather")
        turn = await session.submit("r", "Oslo?")
        await turn.result(20)
    async with local_runtime(weather(), tools, directory=tmp_path) as runtime:
        again = await (await runtime.session("s")).submit("r", "Oslo?")
        assert again.id == turn.id
        assert (await again.result(20)).text == "It will be: sunny in Oslo."


@pytest.mark.capability("H9.1", "C5.1")
async def test_a_retry_waits_on_virtual_time() -> None:
    clock = VirtualClock()
    script = [{"text": "hi", "fault": {"status": 503, "times": 1}}]
    agent = ReactAgent("a", model=ScriptedModel(script))
    async with local_runtime(agent, clock=clock) as runtime:
        turn = await (await runtime.session("s", "a")).submit("r", "hello")
        result = asyncio.ensure_future(turn.result())
        while Reason.BACKOFF not in (await turn.status()).reasons:
            await asyncio.sleep(0)
        retry_at = (await turn.status()).recovery
        assert retry_at is not None and retry_at.retry_at is not None
        assert retry_at.retry_at > clock.now_ms()
        while not result.done():
            await clock.advance(1)
        assert result.result().text == "hi"


@pytest.mark.capability("H9.1")
async def test_a_named_fault_breaks_the_tool_and_the_model_is_told() -> None:
    async with local_runtime(weather(), tools) as runtime:
        with faults.armed("hands.tool.before_call=raise@1"):
            told = await runtime.ask("weather", "Oslo?")
        assert "InjectedFault" in told


async def test_a_turn_that_fails_is_no_answer() -> None:
    async with local_runtime(ReactAgent("a", model=ScriptedModel([]))) as runtime:
        with pytest.raises(AssertionError, match="FAILED.*model"):
            await runtime.ask("a", "hello")


async def test_several_routes_have_no_single_worker() -> None:
    async with local_runtime(ReactAgent("a", model=ScriptedModel(["hi"]))) as runtime:
        with pytest.raises(BadInput, match="none"):
            _ = runtime.worker
        assert await runtime.ask("a", "hello") == "hi"
