"""Brain and Hands in one process over both real ledgers, with tools that fail in every way and an agent that says much."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.handles import Session, Turn
from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.runtime import DurableRuntime
from nerve.common.settings import Settings
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import ToolFailed
from nerve.protocol.identity import SessionKey

SECRET = "a private thought"
QUICK = Settings(scan_seconds=0.05, sweep_seconds=0.05, grace_seconds=0.0, drain_seconds=2.0)


@dataclass(slots=True)
class Whole:
    """What a test of a promise needs: a runtime, its worker, and gates that hold tools."""

    place: Path
    backend: LocalBackend
    worker: WorkerRuntime
    runtime: DurableRuntime
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def session(self, name: str = "s-1") -> Session:
        return await self.runtime.session(SessionKey("acme", name), agent="whole")

    async def submit(self, text: str, name: str = "s-1", request_id: str = "r-1") -> Turn:
        return await (await self.session(name)).submit(request_id, text)

    def rows(self, ledger: str, query: str) -> list[dict[str, Any]]:
        connection = sqlite3.connect(self.place / "state" / f"{ledger}.db", timeout=10)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(query)]
        finally:
            connection.close()

    def execute(self, ledger: str, script: str) -> None:
        """What a test adds to a ledger, for instance a trigger that watches it."""
        connection = sqlite3.connect(self.place / "state" / f"{ledger}.db", timeout=10)
        try:
            connection.executescript(script)
        finally:
            connection.close()


def tools(gate: asyncio.Event) -> Catalog:
    made = Catalog(route="hands")

    @made.tool
    async def echo(text: str) -> str:
        """Says it again."""
        return text

    @made.tool
    async def hold(text: str) -> str:
        """Says it again, later."""
        await gate.wait()
        return text

    @made.tool
    async def prove(text: str) -> str:
        """Proves that it did nothing."""
        raise ToolFailed(f"no file {text}")

    @made.tool(failures=[LookupError])
    async def declared(text: str) -> str:
        """Raises what its binding lists."""
        raise KeyError(text)

    @made.tool
    async def throw(text: str) -> str:
        """Raises what proves nothing."""
        raise RuntimeError(text)

    @made.tool
    async def odd(text: str) -> Any:
        """Returns what cannot be stored."""
        return {text}

    return made


def answer(request: ModelRequest) -> ModelAnswer:
    """`tool tool ...`: all of them at once, with a word before and after; `fail` raises."""
    messages = cast("list[Mapping[str, Any]]", list(request.messages))
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    words = str(messages[last]["text"]).split()
    if words[0] == "fail":
        raise ConnectionError("the model is away")
    if words[0] == "wrong":
        raise TypeError("a mistake in the program")
    if messages[-1]["role"] == "tool" or words[0] == "talk":
        return ModelAnswer(text="the end", reasoning=SECRET)
    calls = tuple(ModelCall(tool=word, arguments={"text": word}) for word in words)
    return ModelAnswer(text="I will look", calls=calls, reasoning=SECRET)


@asynccontextmanager
async def whole(
    place: Path, *, settings: Settings = QUICK, **options: Any
) -> AsyncGenerator[Whole]:
    gate = asyncio.Event()
    catalog = tools(gate)
    agent = ReactAgent("whole", version="1", model=ScriptedModel(answer), tools=catalog)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend.open(place / "state"))
        worker = WorkerRuntime(
            backend.directory, catalog, wakeups=backend.wakeups, settings=settings
        )
        await stack.enter_async_context(worker)
        runtime = DurableRuntime(
            backend,
            agents=[agent],
            executors={"hands": worker.local_executor()},
            settings=settings,
            **options,
        )
        await stack.enter_async_context(runtime)
        yield Whole(place, backend, worker, runtime, gate)
