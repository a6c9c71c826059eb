"""Brokers and processes on one queue file, for tests of what happens between them."""

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from nerve.common.broker import Delivery, SqliteBroker
from nerve.common.wakeups import Doorbell
from support.waiting import soon

CHILD = """
import asyncio, sys
from nerve.common.broker import SqliteBroker
from nerve.common.wakeups import Doorbell

async def main(directory, role):
    bell = Doorbell.open(directory)
    broker = SqliteBroker(directory, bell)
    await broker.open()
    print("open", flush=True)
    if role == "publish":
        for number in range(1000):
            await broker.publish("t", [b"%d" % number])
            print("confirmed", number, flush=True)
            await asyncio.sleep(0)
    consumer = broker.consume("t", "g", credit=lambda: 5)
    while True:
        deliveries = await consumer.receive()
        print("received", *(d.body.decode() for d in deliveries), flush=True)
        if role == "ack":
            consumer.ack(deliveries)
        else:
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class Opened:
    """Brokers on one directory, each with a bell of its own, closed after the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._brokers: list[SqliteBroker] = []
        self._bells: list[Doorbell] = []

    async def open(
        self,
        *,
        hints: bool = True,
        poll_seconds: float = 30.0,
        publish_seconds: float = 5.0,
        bytes_max: int | None = None,
    ) -> SqliteBroker:
        bell = Doorbell.open(self.directory, hints=hints)
        broker = SqliteBroker(
            self.directory,
            bell,
            poll_seconds=poll_seconds,
            publish_seconds=publish_seconds,
            sweep_seconds=0.05,
            bytes_max=bytes_max,
        )
        self._brokers.append(broker)
        self._bells.append(bell)
        await broker.open()
        return broker

    async def close(self) -> None:
        for broker in self._brokers:
            await broker.close()
        for bell in self._bells:
            bell.close()


class Child:
    """A process on the same queue file."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, directory: Path, role: str, specification: str = "") -> "Child":
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, str(directory), role),
            env={**os.environ, "NERVE_FAULTS": specification},
            stdout=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        assert "open" == await child.line()
        return child

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await soon(self.process.stdout.readline())).decode().strip()

    async def rest(self) -> list[str]:
        assert self.process.stdout is not None
        text = await soon(self.process.stdout.read())
        return text.decode().splitlines()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


async def take(broker: SqliteBroker, count: int, *, ack: bool = True) -> list[bytes]:
    consumer = broker.consume("t", "g", credit=lambda: 1000)
    found: list[Delivery] = []
    while len(found) < count:
        found += await soon(consumer.receive())
    if ack:
        consumer.ack(found)
    await consumer.close()
    return [delivery.body for delivery in found]


def stored(directory: Path) -> list[bytes]:
    with closing(sqlite3.connect(directory / "broker.db")) as connection:
        return [body for (body,) in connection.execute("SELECT body FROM message ORDER BY id")]
