"""DBOS at its best settings, on SQLite or PostgreSQL: client and Brain are one process, Hands another."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peer import Acknowledged
from bench.peers import work
from bench.processes import files_bytes

POLL_S = 0.01
DBOS: Any = import_module("dbos").DBOS


async def _model_1(turn: str) -> dict[str, Any]:
    return work.model_1(turn)


async def _model_2(turn: str, result: str) -> str:
    return work.model_2(turn, result)


async def _tool(turn: str) -> str:
    return work.tool(turn)


model_1: Any = DBOS.step()(_model_1)
model_2: Any = DBOS.step()(_model_2)
tool: Any = DBOS.step()(_tool)


async def _tool_call(turn: str) -> str:
    return str(await tool(turn))


tool_call: Any = DBOS.workflow()(_tool_call)


async def _turn(turn: str) -> str:
    call = await model_1(turn)
    handle = await DBOS.enqueue_workflow_async("tools", tool_call, call["args"]["turn"])
    return str(await model_2(turn, await handle.get_result(polling_interval_sec=POLL_S)))


turn_workflow: Any = DBOS.workflow()(_turn)


def launch(role: str, url: str) -> None:
    config = {
        "name": "turn",
        "system_database_url": url,
        "executor_id": role,
        "log_level": "ERROR",
        "application_version": "1",
    }
    DBOS(config=config)
    DBOS.listen_queues(["turns"] if role == "brain" else ["tools"])
    DBOS.launch()
    for queue in ("turns", "tools"):
        DBOS.register_queue(queue, polling_interval_sec=POLL_S, on_conflict="always_update")


class Peer:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "dbos.db"
        self._url = os.environ.get("BENCH_POSTGRES", f"sqlite:///{self._path}")

    def settings(self) -> Mapping[str, str]:
        return {
            "version": f"dbos {version('dbos')}",
            "store": f"{self._url.partition(':')[0]} system database, its own defaults",
            "sync level": self._sync_level(),
            "polls": f"queue and result every {POLL_S * 1000:.0f} ms (defaults: 1 s)",
            "tool": "queue to another process; client inside the Brain's process",
        }

    def _sync_level(self) -> str:
        if not self._url.startswith("sqlite"):
            return "fsync and synchronous_commit on"
        with closing(sqlite3.connect(self._path)) as connection:
            mode = connection.execute("pragma journal_mode").fetchone()[0]
        return f"journal_mode={mode}, synchronous as DBOS leaves it"

    def _command(self, role: str) -> list[str]:
        return [sys.executable, "-m", "bench.peers.dbos_peer", role, self._url]

    def prepare(self) -> None:
        subprocess.run(self._command("setup"), check=True, stdout=sys.stderr)

    def procs(self) -> Mapping[str, Sequence[str]]:
        return {"hands": self._command("hands")}

    async def connect(self) -> None:
        await asyncio.to_thread(launch, "brain", self._url)

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        handle = await DBOS.start_workflow_async(turn_workflow, turn)
        acknowledged(f"ask-{turn}")
        return str(await handle.get_result())

    def store_bytes(self) -> int:
        return files_bytes(self._path.parent.glob("dbos.db*"))

    async def close(self) -> None:
        return None


if __name__ == "__main__":
    launch(sys.argv[1], sys.argv[2])
    if sys.argv[1] != "setup":
        signal.pause()
    DBOS.destroy()
