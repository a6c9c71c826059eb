"""Many failing tools and a long Thread, in one process over both real ledgers: memory and pace stay as they were."""

import asyncio
import gc
import logging
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from nerve.brain.agents.context import Context
from nerve.brain.agents.function import FunctionAgent
from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.harness import Harness
from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.runtime import DurableRuntime
from nerve.brain.schedule.run_host import ANSWER_BYTES_MAX
from nerve.brain.state.turn import TurnPhase
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from nerve.protocol.identity import SessionKey

FAILING = 1_500
WARM = 1_500
TURNS = 300
BYTES = 20_000

tools = Catalog(route="hands")


@tools.tool
async def fail(text: str) -> str:
    """Raises with a trace that holds on to much."""
    held = [text] * 1000
    raise RuntimeError(f"{text} {len(held)}" * 50)


@tools.tool
async def load(text: str) -> str:
    """Twenty kilobytes."""
    return text * BYTES


def answer(request: ModelRequest) -> ModelAnswer:
    last = cast("dict[str, Any]", request.messages[-1])
    if last["role"] == "tool":
        return ModelAnswer(text="done")
    return ModelAnswer(calls=(ModelCall(tool=str(last["text"]), arguments={"text": "x"}),))


@asynccontextmanager
async def world(place: Path) -> AsyncGenerator[DurableRuntime]:
    agent = ReactAgent("mass", version="1", model=ScriptedModel(answer), tools=tools)
    async with LocalBackend.open(place / "state") as backend:
        async with WorkerRuntime(backend.directory, tools, wakeups=backend.wakeups) as worker:
            executors = {"hands": worker.local_executor()}
            async with DurableRuntime(
                backend, agents=[agent], executors=executors, warm_frames=8
            ) as runtime:
                yield runtime


def resident_kib() -> int:
    """Of this process, after everything that can go has gone."""
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.report("U128")
async def test_thousands_of_failing_tools_leave_the_memory_as_it_was(tmp_path: Path) -> None:
    logging.getLogger("nerve").setLevel(logging.CRITICAL)

    async def one(runtime: DurableRuntime, number: int) -> None:
        session = await runtime.session(SessionKey("acme", f"s{number}"), agent="mass")
        turn = await session.submit("r", "fail")
        assert (await turn.result(60)).phase is TurnPhase.COMPLETED

    async def many(runtime: DurableRuntime, first: int, count: int) -> None:
        for start in range(first, first + count, 50):
            await asyncio.gather(*(one(runtime, n) for n in range(start, start + 50)))

    async with world(tmp_path) as runtime:
        await many(runtime, 0, WARM)
        before = resident_kib()
        await many(runtime, WARM, FAILING)
        grown = resident_kib() - before
    assert grown < 3 * 1024, f"{grown} KiB for {FAILING} failing tools"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.report("U52", "U53", "U55")
@pytest.mark.rule(23)
async def test_the_last_turns_of_a_long_thread_are_as_quick_as_its_first(tmp_path: Path) -> None:
    async with world(tmp_path) as runtime:
        session = await runtime.session(SessionKey("acme", "s"), agent="mass")
        took: list[float] = []
        for number in range(TURNS):
            began = time.perf_counter()
            assert (await session.call(f"r{number}", "load", timeout=30)).text == "done"
            took.append(time.perf_counter() - began)
        early, late = took[20:120], took[-100:]
        assert statistics.median(late) < 2 * statistics.median(early)


@pytest.mark.report("U51", "U52")
async def test_arguments_work_up_to_the_limit_and_fail_once_with_tool_size_and_limit(
    tmp_path: Path,
) -> None:
    measured: list[int] = []
    catalog = Catalog(route="hands")

    @catalog.tool
    async def measure(text: str) -> int:
        measured.append(len(text))
        return len(text)

    async def body(ctx: Context, said: Message) -> str:
        return str(await ctx.call("measure", text="x" * int(said.text)))

    agent = FunctionAgent(body, "sizes", version="1", tools=catalog)
    mebibyte = 1024 * 1024
    async with LocalBackend.open(tmp_path / "state") as backend:
        async with WorkerRuntime(backend.directory, catalog, wakeups=backend.wakeups) as worker:
            executors = {"hands": worker.local_executor()}
            async with DurableRuntime(backend, agents=[agent], executors=executors) as runtime:
                session = await runtime.session(SessionKey("acme", "s"), agent="sizes")
                for size in (int(0.9 * mebibyte), 1_040_000):
                    good = await session.call(f"r{size}", str(size), timeout=30)
                    assert good.text == str(size)
                for size in (mebibyte, int(1.1 * mebibyte), 5 * mebibyte, 50 * mebibyte):
                    result = await session.call(f"r{size}", str(size), timeout=60)
                    assert result.phase is TurnPhase.FAILED and result.failure is not None
                    assert result.failure["code"] == "too_large"
                    said = result.failure["message"]
                    assert "the tool 'measure'" in said and f"limit is {mebibyte}" in said
                assert measured == [int(0.9 * mebibyte), 1_040_000]
                assert (await session.call("after", "7", timeout=30)).text == "7"


@pytest.mark.report("U51", "U52")
async def test_an_answer_over_the_limit_ends_its_turn_once_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def answers(request: ModelRequest) -> ModelAnswer:
        asked.append(request.key)
        said = cast("dict[str, Any]", request.messages[-1])["text"]
        return ModelAnswer(text="x" * int(said))

    async def body(ctx: Context, said: Message) -> str:
        return "y" * int(said.text)

    agents: list[Harness] = [
        ReactAgent("model", model=ScriptedModel(answers)),
        FunctionAgent(body, "code"),
    ]
    async with LocalBackend.open(tmp_path / "state") as backend:
        async with DurableRuntime(backend, agents=agents) as runtime:
            for name in ("model", "code"):
                session = await runtime.session(SessionKey("acme", name), agent=name)
                result = await session.call("r-big", str(ANSWER_BYTES_MAX), timeout=60)
                assert result.phase is TurnPhase.FAILED and result.failure is not None
                assert result.failure["code"] == "too_large"
                assert str(ANSWER_BYTES_MAX) in result.failure["message"]
                assert (await session.call("r-next", "7", timeout=30)).text in ("x" * 7, "y" * 7)
    assert len(asked) == 2
