"""A started worker of one process with its Brain's end, and tools that count what they did."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nerve.common.clock import SystemClock
from nerve.common.lease import Host, Release, release
from nerve.common.settings import Settings
from nerve.common.sql import Tx, sql
from nerve.hands import WorkerRuntime
from nerve.hands.ledger.records import read_row
from nerve.protocol.catalog import Catalog
from nerve.protocol.executor import Executor
from nerve.protocol.signature import ToolContext
from support.hands_world import CELL, Asker, Told
from support.waiting import until

QUICK = Settings(scan_seconds=0.05, sweep_seconds=0.05, grace_seconds=0.0)


@dataclass(slots=True)
class Bench:
    """Tools that count what they did, and gates that hold them."""

    effects: list[str] = field(default_factory=list[str])
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    stuck: threading.Event = field(default_factory=threading.Event)
    worker: WorkerRuntime | None = None

    def catalog(self) -> Catalog:
        made = Catalog()

        @made.tool
        async def act(context: ToolContext) -> str:
            self.effects.append(context.execution)
            return "done"

        @made.tool
        async def hold(context: ToolContext) -> str:
            self.effects.append(context.execution)
            await self.gate.wait()
            return "done"

        @made.tool(idempotent_start=True)
        async def again(context: ToolContext) -> int:
            self.effects.append(context.execution)
            if context.attempt == 1:
                await self.gate.wait()
            return context.attempt

        @made.tool
        def block(context: ToolContext) -> str:
            self.effects.append(context.execution)
            self.stuck.wait(20)
            return "done"

        @made.tool
        async def leave(context: ToolContext) -> str:
            self.effects.append(context.execution)
            assert self.worker is not None
            await self.worker.close()
            return "left"

        return made


@dataclass(slots=True)
class Place:
    worker: WorkerRuntime
    executor: Executor
    asker: Asker
    told: Told

    async def start(self, tool: str, **arguments: Any) -> str:
        command = self.asker.call(tool, **arguments)
        await self.executor.start([self.asker.seal(command)])
        return command.execution

    async def release(self, host: str) -> bool:
        """Take everything from a host, as another one does that thinks it dead."""
        unit = Release(host=host, now=SystemClock().now_ms(), also=self.worker.assembly.release)
        return await self.worker.ledger.commit(release, unit)

    async def thaw(self, host: Host) -> None:
        """What the heartbeat does when it finds its host released, without waiting for a beat."""
        host.lost.set()
        for callback in host.on_lost:
            callback()
        await until(lambda: self.worker.host is not host, "it registered anew")

    async def row(self, execution: str) -> Any:
        return await self.worker.ledger.read(lambda tx: read_row(tx, execution))

    async def count(self, table: str) -> int:
        statement = sql(f"select count(*) as number from {table}")

        async def query(tx: Tx) -> int:
            row = await tx.one(statement)
            assert row is not None
            return int(row["number"])

        return await self.worker.ledger.read(query)


@asynccontextmanager
async def place(
    directory: Path, catalog: Catalog, *, drain: bool = True, **options: Any
) -> AsyncGenerator[Place]:
    options.setdefault("settings", QUICK)
    worker = WorkerRuntime(directory / "state", catalog, **options)
    await worker.start()
    told = Told()
    executor = worker.local_executor()
    await executor.open(CELL, told.sink)
    try:
        yield Place(worker, executor, Asker(catalog), told)
    finally:
        if drain:
            await worker.drain()
        await worker.close()
