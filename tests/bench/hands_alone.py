"""Hands alone over RabbitMQ and PostgreSQL: commands admitted, run and reported; `python -m bench.hands_alone`.

Beside it RabbitMQ's own rate of confirmed publishing and consuming, and the memory that thousands of
large commands in the queue take.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from bench import brokers, processes
from bench.drive import stop
from bench.peers.hands_app import tools
from bench.servers import Servers
from bench.servers_env import server_pids
from nerve.common.broker.rabbitmq import RabbitBroker
from nerve.protocol import topics
from nerve.protocol.envelope import bundle, unbundle
from support.hands_world import CELL, Asker

APP = Path(__file__).parent / "peers" / "hands_app.py"
COMMANDS, CONTROLS = topics.commands("local", "hands"), topics.controls("local", "hands")
UPDATES = topics.updates("local", CELL)
TERMINAL = b'"state":"SUCCEEDED"'
TOGETHER = 64
BUNDLE_BYTES = 256 * 1024
LIMIT_S = 600.0


class Hands:
    """Some Hands processes on one ledger."""

    def __init__(self, count: int, place: Path) -> None:
        self._place = place
        self._running = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "nerve.deploy", "hands", str(APP), "--route", "hands"]
        addresses = ["--broker", os.environ["BENCH_AMQP"]]
        ledger = ["--database", os.environ["BENCH_POSTGRES_HANDS"]]
        directory = ["--dir", str(self._place / f"hands-{number}")]
        with (self._place / "hands.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *addresses, *ledger, *directory], stdout=log, stderr=log
            )

    def cpu_s(self) -> float:
        return sum(processes.cpu_seconds(each.pid) for each in self._running)

    def peak_mib(self) -> float:
        """Of the largest of them."""
        kib = [processes.labelled(f"/proc/{each.pid}/status", "VmHWM:") for each in self._running]
        return round(max(kib) / 1024, 1)

    def stop(self) -> None:
        for each in self._running:
            stop(each)


def sealed(count: int, size: int) -> list[bytes]:
    """Bundles of different commands, each with `size` bytes of arguments."""
    bundles = list[bytes]()
    together = max(1, min(TOGETHER, BUNDLE_BYTES // (size + 1024)))
    for _ in range(0, count, together):
        asker = Asker(tools)
        calls = [asker.call("nothing", text="x" * size) for _ in range(together)]
        bundles.append(bundle([asker.seal(call) for call in calls]))
    return bundles


@asynccontextmanager
async def queues() -> AsyncGenerator[RabbitBroker]:
    broker = RabbitBroker(os.environ["BENCH_AMQP"])
    await broker.lacking([COMMANDS, CONTROLS, UPDATES], reads=[], create=True)
    yield broker
    await broker.close()


async def reported(broker: RabbitBroker, count: int) -> None:
    """Until so many executions have told of their end."""
    consumer = broker.consume(UPDATES, topics.group(UPDATES), credit=lambda: 100_000)
    seen = 0
    async with asyncio.timeout(LIMIT_S):
        while seen < count:
            deliveries = await consumer.receive()
            for delivery in deliveries:
                seen += sum(TERMINAL in raw for raw in unbundle(delivery.body))
            consumer.ack(deliveries)
    await consumer.close()


def server_cpu_s() -> dict[str, float]:
    found = server_pids(os.environ)
    return {name: processes.together(pids).cpu_s for name, pids in found.items()}


async def rate(replicas: int, count: int) -> dict[str, Any]:
    """Commands a second, from the first publish to the last report."""
    bundles = sealed(count, 100)
    with tempfile.TemporaryDirectory(prefix="bench-hands-") as place:
        async with queues() as broker:
            hands = Hands(replicas, Path(place))
            try:
                await through(broker, sealed(TOGETHER * replicas, 100))
                cpu, servers, began = hands.cpu_s(), server_cpu_s(), time.perf_counter()
                total = await through(broker, bundles)
                took = time.perf_counter() - began
                spent = {name: cpu_s - servers[name] for name, cpu_s in server_cpu_s().items()}
                spent["hands"] = hands.cpu_s() - cpu
            finally:
                hands.stop()
    return {
        "commands": total,
        "commands_s": round(total / took, 1),
        "commands_cpu_s": round(total / sum(spent.values()), 1),
        "commands_cpu_s_hands": round(total / spent["hands"], 1),
        "cpu_ms": {name: round(seconds / total * 1e3, 3) for name, seconds in spent.items()},
    }


async def through(broker: RabbitBroker, bundles: Sequence[bytes]) -> int:
    total = sum(len(unbundle(body)) for body in bundles)
    told = asyncio.ensure_future(reported(broker, total))
    waiting = iter(bundles)

    async def publish() -> None:
        for body in waiting:
            await broker.publish(COMMANDS, [body])

    await asyncio.gather(*(publish() for _ in range(4)), told)
    return total


async def memory(count: int, size: int) -> dict[str, Any]:
    """The most that Hands take while all of it waits in the queue and then comes at once."""
    with tempfile.TemporaryDirectory(prefix="bench-hands-") as place:
        async with queues() as broker:
            total = 0
            for _ in range(0, count, 50):
                for body in sealed(50, size):
                    total += len(unbundle(body))
                    await broker.publish(COMMANDS, [body])
            hands = Hands(1, Path(place))
            try:
                await reported(broker, total)
                peak = hands.peak_mib()
            finally:
                hands.stop()
    return {"commands": total, "bytes_each": size, "hands_peak_mib": peak}


async def raw(together: int, publishers: int) -> float:
    """Messages a second that RabbitMQ takes, confirms and gives, through the same adapters."""
    async with AsyncExitStack() as stack:
        ends = RabbitBroker(os.environ["BENCH_AMQP"]), RabbitBroker(os.environ["BENCH_AMQP"])
        for end in ends:
            stack.push_async_callback(end.close)
        await ends[0].lacking([brokers.TOPIC], reads=[], create=True)
        return round(await brokers.bulk(ends, 3, 1024, together, publishers), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commands", type=int, default=3000)
    parser.add_argument(
        "--large", type=int, default=5000, help="commands of the memory run; 0: none"
    )
    parser.add_argument("--size", type=int, default=250 * 1024, help="bytes of each of those")
    asked = parser.parse_args()
    servers = Servers()
    try:
        servers.require(["postgres", "rabbitmq"])
        for number in range(asked.rounds):
            os.environ.update(servers.fresh(["postgres", "rabbitmq"]))
            row: dict[str, Any] = {"round": number + 1, "load": processes.load()}
            row["rabbitmq_messages_s"] = asyncio.run(raw(1, 16))
            row["rabbitmq_in_bundles_s"] = asyncio.run(raw(4, 16))
            for replicas in (1, 2):
                os.environ.update(servers.fresh(["postgres", "rabbitmq"]))
                row[f"hands_{replicas}"] = asyncio.run(rate(replicas, asked.commands))
            print(json.dumps(row), flush=True)
        if asked.large:
            os.environ.update(servers.fresh(["postgres", "rabbitmq"]))
            print(json.dumps(asyncio.run(memory(asked.large, asked.size))), flush=True)
    finally:
        servers.drop()


if __name__ == "__main__":
    main()
