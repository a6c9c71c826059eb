"""nerve as it is deployed: Brain and Hands on a PostgreSQL ledger each, RabbitMQ between them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.peers import nerve_2p_peer
from nerve.brain.ledger.postgres_backend import PostgresBackend
from nerve.brain.runtime import DurableRuntime

APP = str(nerve_2p_peer.APP)


class Peer(nerve_2p_peer.Peer):
    """Several Brains share the one ledger, several Hands the other, each in a folder of its own."""

    broker = "RabbitMQ, quorum queues, confirms"

    def settings(self) -> Mapping[str, str]:
        return {
            "store": "PostgreSQL, a database for each side",
            "sync level": "fsync and synchronous_commit on",
            "broker": self.broker,
            "logs, metrics, validation": "on",
            "tool": "in the Hands process",
            "Sessions": "a new one for each turn, numbered",
        }

    def address(self) -> str:
        return f"{os.environ['BENCH_AMQP']}?create=true"

    def prepare(self) -> None:
        with ThreadPoolExecutor(1) as thread:  # the caller's loop is running
            self.provision(thread.submit(lambda: asyncio.run(self._cell())).result())

    async def _cell(self) -> str:
        """The Brain's ledger, which is made here, names the topic of its updates."""
        async with await PostgresBackend.open(os.environ["BENCH_POSTGRES"]) as backend:
            return backend.ledger.identity.id

    def provision(self, cell: str) -> None:
        command = [sys.executable, "-m", "nerve.deploy", "provision", APP]
        options = ["--dir", str(self._directory / "operator"), "--broker", self.address()]
        database = ["--database", os.environ["BENCH_POSTGRES"]]
        subprocess.run([*command, *options, *database], check=True, stdout=sys.stderr)

    def procs(self) -> Mapping[str, Sequence[str]]:
        return {
            **self._replicas("brain", "BENCH_POSTGRES", ()),
            **self._replicas("hands", "BENCH_POSTGRES_HANDS", ("--route", "hands")),
        }

    def _replicas(self, role: str, database: str, more: Sequence[str]) -> dict[str, Sequence[str]]:
        count = int(os.environ.get(f"BENCH_{role.upper()}_COUNT", "1"))
        names = [role, *(f"{role}_{number}" for number in range(2, count + 1))]
        return {name: self._host(role, name, database, more) for name in names}

    def _host(self, role: str, name: str, database: str, more: Sequence[str]) -> list[str]:
        return [
            sys.executable,
            "-m",
            "nerve.deploy",
            role,
            APP,
            *more,
            "--dir",
            str(self._directory / name),
            "--database",
            os.environ[database],
            "--broker",
            self.address(),
            "--metrics",
            "127.0.0.1:0",
        ]

    async def _open(self) -> DurableRuntime:
        backend = await PostgresBackend.open(os.environ["BENCH_POSTGRES"], create=False)
        await self._stack.enter_async_context(backend)
        return await self._stack.enter_async_context(DurableRuntime(backend))

    def store_bytes(self) -> int:
        return 0
