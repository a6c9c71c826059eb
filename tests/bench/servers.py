"""The servers that contenders talk to: started natively once a run, empty again for each start of a peer."""

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from unittest import mock
from urllib.parse import urlsplit

from bench import database
from bench.servers_env import DATABASE, SERVERS
from support import rabbit
from support.servers.native import NativeServer
from support.servers.postgres import drop_database, make_database, with_database
from support.services import Unavailable


class Server(Protocol):
    """One server; its address differs from one `fresh` to the next, so that nothing is left over."""

    def start(self) -> None:
        """Raises Unavailable where it is not installed."""
        ...

    def pids(self) -> Sequence[int]: ...

    def fresh(self) -> Mapping[str, str]:
        """What a peer finds in its environment; the things of the last `fresh` are gone."""
        ...

    def drop(self) -> None: ...


class _Native:
    """By the `services` script, with `variables` for it."""

    name = ""
    programs: Sequence[str] = ()
    variables: Mapping[str, str] = {}

    def start(self) -> None:
        with mock.patch.dict(os.environ, self.variables):
            self.server = NativeServer(self.name, programs=self.programs)
            try:
                self.server.start()
            except subprocess.TimeoutExpired as error:
                raise Unavailable(f"{self.name} did not start in time") from error

    def pids(self) -> Sequence[int]:
        files = self.server.directory.glob("*.pid")
        return [int(file.read_text().split()[0]) for file in files]

    def drop(self) -> None:
        self.server.drop()


class Postgres(_Native):
    """fsync on and otherwise its defaults; statements are counted where a phase asks for it."""

    name = "postgres"
    programs = ("initdb",)
    variables: Mapping[str, str] = {"NERVE_POSTGRES_OPTIONS": database.OPTIONS}

    def __init__(self) -> None:
        self._made: list[str] = []

    def start(self) -> None:
        super().start()
        database.prepare(self._admin)

    @property
    def _admin(self) -> str:
        return with_database(self.server.address("NERVE_TEST_POSTGRES_URL"), "postgres")

    def fresh(self) -> Mapping[str, str]:
        for url in self._made:
            asyncio.run(drop_database(url))
        self._made = [asyncio.run(make_database(self._admin)) for _ in range(2)]
        # Every start begins at the same distance from the next checkpoint and its full pages.
        database.ask(self._admin, "checkpoint")
        brain, hands = self._made
        return {"BENCH_POSTGRES": brain, "BENCH_POSTGRES_HANDS": hands, DATABASE: self._admin}


class Rabbit(_Native):
    name = "rabbitmq"
    programs = ("rabbitmq-server",)

    def __init__(self) -> None:
        self._host: str | None = None

    def fresh(self) -> Mapping[str, str]:
        amqp, management = (
            self.server.address(f"NERVE_TEST_AMQP_{name}") for name in ("URL", "MANAGEMENT_URL")
        )
        if self._host is not None:
            rabbit.manage("DELETE", f"vhosts/{self._host}", at=management)
        self._host = f"bench-{secrets.token_hex(4)}"
        rabbit.manage("PUT", f"vhosts/{self._host}", at=management)
        rabbit.permit(self._host, urlsplit(amqp).username or "", at=management)
        return {"BENCH_AMQP": rabbit.below(amqp, self._host)}


class Rocket(_Native):
    name = "rocketmq"
    programs = ("java",)
    variables: Mapping[str, str] = {"NERVE_REQUIRE": "rocketmq"}

    def fresh(self) -> Mapping[str, str]:
        return {
            "BENCH_ROCKETMQ": self.server.address("NERVE_TEST_ROCKETMQ_ENDPOINT"),
            "BENCH_ROCKETMQ_NAMESRV": self.server.address("NERVE_TEST_ROCKETMQ_NAMESRV"),
            "BENCH_PREFIX": f"b{secrets.token_hex(4)}.",
        }


class Redis:
    """Where taskiq keeps results; in memory alone."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="nerve-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = self._directory / "redis.sock"

    def start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise Unavailable("redis-server is not installed")
        command = [program, "--port", "0", "--unixsocket", str(self._socket), "--save", ""]
        log = (self._directory / "redis.log").open("wb")
        self._process = subprocess.Popen(command, cwd=self._directory, stdout=log)
        log.close()
        self._await()

    def _await(self) -> None:
        assert self._process is not None
        while not self._socket.exists():
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise Unavailable("redis-server did not start")

    def pids(self) -> Sequence[int]:
        return [] if self._process is None else [self._process.pid]

    def fresh(self) -> Mapping[str, str]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self._socket))
            client.sendall(b"FLUSHALL\r\n")
            client.recv(64)
        return {"BENCH_REDIS": f"unix://{self._socket}"}

    def drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


KINDS: Mapping[str, type[Server]] = {
    "postgres": Postgres,
    "rabbitmq": Rabbit,
    "rocketmq": Rocket,
    "redis": Redis,
}


class Servers:
    """Those of one run, by name; each is started when the first contender needs it."""

    def __init__(self) -> None:
        self._running: dict[str, Server] = {}

    def require(self, names: Sequence[str]) -> None:
        """Raises Unavailable."""
        for name in names:
            if name not in self._running:
                server = KINDS[name]()
                try:
                    server.start()
                except BaseException:
                    server.drop()
                    raise
                self._running[name] = server

    def fresh(self, names: Sequence[str]) -> dict[str, str]:
        """Addresses for a peer that needs these servers, and their processes for who measures it."""
        variables: dict[str, str] = {}
        for name in names:
            variables |= self._running[name].fresh()
        pids = {name: list(self._running[name].pids()) for name in names}
        return variables | {SERVERS: json.dumps(pids)}

    def drop(self) -> None:
        while self._running:
            self._running.popitem()[1].drop()
