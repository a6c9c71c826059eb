"""A Hands process for tests that kill it: `python -m support.hands_child DIRECTORY COMMANDS UPDATES EFFECTS`.

It admits what stands in COMMANDS (one envelope a line), appends every update to UPDATES before it says
that it was received, and its tools append a line to EFFECTS when they enter and when they act. It ends
when each line of COMMANDS has a terminal update.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nerve.common.settings import Settings
from nerve.hands import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.envelope import open_envelope
from nerve.protocol.signature import ToolContext
from nerve.protocol.updates import ExecutionUpdate

CELL = "cell-1"


def tools(effects: Path) -> Catalog:
    catalog = Catalog()

    async def act(context: ToolContext) -> str:
        append(effects, f"enter {context.execution} {context.attempt}")
        await asyncio.sleep(0)
        append(effects, f"effect {context.execution} {context.attempt}")
        return "done"

    catalog.tool(name="once")(act)
    catalog.tool(name="again", idempotent_start=True)(act)
    return catalog


def append(path: Path, line: str) -> None:
    """Durable enough to outlive a kill of this process."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def ended(updates: Path) -> set[str]:
    bodies = [open_envelope(raw).body for raw in lines(updates)]
    return {
        body.execution
        for body in bodies
        if isinstance(body, ExecutionUpdate) and body.state.is_terminal
    }


async def main(directory: Path, commands: Path, updates: Path, effects: Path) -> None:
    done = asyncio.Event()
    wanted = {str(open_envelope(raw).execution) for raw in lines(commands)}

    async def sink(raws: Sequence[bytes]) -> None:
        for raw in raws:
            append(updates, raw.decode())
        if wanted <= ended(updates):
            done.set()

    settings = Settings(scan_seconds=0.05, sweep_seconds=0.05, outbox_resend_seconds=0.2)
    async with WorkerRuntime(directory, tools(effects), slots=4, settings=settings) as worker:
        executor = worker.local_executor()
        await executor.open(CELL, sink)
        raws = lines(commands)
        for first in range(0, len(raws), 8):
            await executor.start(raws[first : first + 8])
        if not wanted <= ended(updates):
            await asyncio.wait_for(done.wait(), 30)


if __name__ == "__main__":
    asyncio.run(main(*(Path(argument) for argument in sys.argv[1:])))
