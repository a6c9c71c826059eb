"""Absurd on PostgreSQL at its best settings: polls each 10 ms, the tool wakes the turn by an event."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peer import Acknowledged
from bench.peers import work

POLL_S = 0.01
QUEUES = ("turns", "tools")
WORKER = {"concurrency": 64, "poll_interval": POLL_S, "claim_timeout": 120}
URL = os.environ.get("BENCH_POSTGRES", "")


def absurd(queue: str) -> Any:
    return import_module("absurd_sdk").AsyncAbsurd(URL, queue_name=queue)


async def brain() -> None:
    app, tools = absurd("turns"), absurd("tools")

    async def turn(params: Any, ctx: Any) -> str:
        asked = params["turn"]

        async def first() -> dict[str, Any]:
            return work.model_1(asked)

        async def spawn() -> str:
            spawned = await tools.spawn("tool", call["args"], queue="tools", idempotency_key=asked)
            return str(spawned["task_id"])

        async def second() -> str:
            return work.model_2(asked, result)

        call = await ctx.step("model-1", first)
        await ctx.step("spawn", spawn)
        result = await ctx.await_event(f"tool:{asked}")
        return str(await ctx.step("model-2", second))

    app.register_task("turn")(turn)
    await app.start_worker(**WORKER)


async def hands() -> None:
    app, back = absurd("tools"), absurd("turns")

    async def tool(params: Any, ctx: Any) -> str:
        async def run() -> str:
            return work.tool(params["turn"])

        result = await ctx.step("tool", run)
        await back.emit_event(f"tool:{params['turn']}", result, "turns")
        return str(result)

    app.register_task("tool")(tool)
    await app.start_worker(**WORKER)


class Peer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def settings(self) -> Mapping[str, str]:
        return {
            "version": f"absurd-sdk {version('absurd-sdk')}",
            "store": "PostgreSQL",
            "sync level": "fsync and synchronous_commit on",
            "polls": f"every {POLL_S * 1000:.0f} ms (default: 250), 64 at once",
            "tool": "queue to another process, which wakes the turn by an event",
        }

    def prepare(self) -> None:
        command = str(Path(sys.executable).with_name("absurdctl"))
        environment = {**os.environ, "ABSURD_DATABASE_URL": URL}
        for words in (["init"], *(["create-queue", queue] for queue in QUEUES)):
            subprocess.run([command, *words], check=True, env=environment, stdout=sys.stderr)

    def procs(self) -> Mapping[str, Sequence[str]]:
        module = "bench.peers.absurd_peer"
        return {role: [sys.executable, "-m", module, role] for role in ("brain", "hands")}

    async def connect(self) -> None:
        self._client = absurd("turns")

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        spawned = await self._client.spawn("turn", {"turn": turn}, queue="turns")
        acknowledged(f"ask-{turn}")
        while True:
            found = await self._client.fetch_task_result(spawned["task_id"], "turns")
            if found and found.state in ("completed", "failed", "cancelled"):
                return str(found.result)
            await asyncio.sleep(POLL_S)

    def store_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        return None


if __name__ == "__main__":
    asyncio.run({"brain": brain, "hands": hands}[sys.argv[1]]())
