"""Every executor behind the port; a new one adds a line to `EXECUTORS`."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from nerve.hands import WorkerRuntime
from support.executor_world import Effects, World, catalog
from support.hands_world import CELL, Asker, Told

Opener = Callable[[Path], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def local(directory: Path) -> AsyncGenerator[World]:
    effects = Effects()
    tools = catalog(effects)
    told = Told()
    async with WorkerRuntime(directory / "state", tools, slots=4) as worker:
        executor = worker.local_executor()
        await executor.open(CELL, told.sink)
        yield World(executor, Asker(tools), told, effects)
        effects.gate.set()
        await executor.close()


EXECUTORS: dict[str, Opener] = {"local": local}


@pytest.fixture(params=sorted(EXECUTORS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with EXECUTORS[request.param](tmp_path) as opened:
        yield opened
