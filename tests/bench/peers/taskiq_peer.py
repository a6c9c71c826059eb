"""taskiq over RabbitMQ, results in Redis: a plain queue; nothing of a turn is kept."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.peer import Acknowledged
from bench.peers import work

POLL_S = 0.01
LIMIT_S = 120
rabbit: Any = import_module("taskiq_aio_pika")
redis: Any = import_module("taskiq_redis")


def make(name: str) -> Any:
    results = redis.RedisAsyncResultBackend(os.environ["BENCH_REDIS"], result_ex_time=600)
    return rabbit.AioPikaBroker(
        os.environ["BENCH_AMQP"],
        exchange=rabbit.Exchange(name=name),
        task_queues=[rabbit.Queue(name=name)],
        dead_letter_queue=rabbit.Queue(name=f"{name}.dead"),
        qos=64,
        result_backend=results,
    )


turns, tools = make("turns"), make("tools")
started: list[bool] = []


async def _tool(turn: str) -> str:
    return work.tool(turn)


tool: Any = tools.task(task_name="tool")(_tool)


async def _turn(turn: str) -> str:
    if not started:
        started.append(True)
        await tools.startup()
    task = await tool.kiq(work.model_1(turn)["args"]["turn"])
    result = await task.wait_result(check_interval=POLL_S, timeout=LIMIT_S)
    return work.model_2(turn, result.return_value)


turn_task: Any = turns.task(task_name="turn")(_turn)


class Peer:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def settings(self) -> Mapping[str, str]:
        return {
            "version": f"taskiq {version('taskiq')}, taskiq-aio-pika {version('taskiq-aio-pika')}",
            "store": "none: results in Redis, in memory",
            "sync level": "nothing is kept",
            "polls": f"results every {POLL_S * 1000:.0f} ms (default: 200)",
            "tool": "queue to another process",
        }

    def prepare(self) -> None:
        return None

    def procs(self) -> Mapping[str, Sequence[str]]:
        command = str(Path(sys.executable).with_name("taskiq"))
        options = ("--workers", "1", "--max-async-tasks", "64")
        module = "bench.peers.taskiq_peer"
        return {
            "brain": [command, "worker", *options, f"{module}:turns"],
            "hands": [command, "worker", *options, f"{module}:tools"],
        }

    async def connect(self) -> None:
        await turns.startup()

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        task = await turn_task.kiq(turn)
        acknowledged(f"ask-{turn}")
        result = await task.wait_result(check_interval=POLL_S, timeout=LIMIT_S)
        return str(result.return_value)

    def store_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        return None
