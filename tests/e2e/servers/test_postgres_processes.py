"""Brain and Hands as processes of their own, each on its own PostgreSQL database, killed and restarted."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from nerve.brain import DurableRuntime, PostgresBackend
from nerve.protocol.errors import LedgerUnavailable
from support.rabbit import virtual_host
from support.servers.native import NativeServer
from support.servers.postgres import VARIABLE, make_database
from support.services import Service
from support.storm import ended, submit

pytestmark = [pytest.mark.external, pytest.mark.chaos]

APP = Path(__file__).with_name("postgres_app.py")


@pytest.fixture
def server() -> Generator[NativeServer]:
    """A server of this test's own: it is killed."""
    made = NativeServer("postgres", programs=["initdb"])
    Service(name="postgres", variable="", native=[lambda: made.address(VARIABLE)]).address()
    yield made
    made.drop()


@dataclass
class Hosts:
    """Processes by role; `kill` and `start` again as often as wanted."""

    place: Path
    databases: dict[str, str]
    broker: str = ""
    running: dict[str, subprocess.Popen[bytes]] = field(
        default_factory=dict[str, subprocess.Popen[bytes]]
    )

    @property
    def effects(self) -> Path:
        return self.place / "effects.txt"

    def start(self, role: str, faults: str = "") -> None:
        log = (self.place / f"{role}.log").open("ab")
        environment = os.environ | {
            "NERVE_DATABASE": self.databases[role],
            "NERVE_BROKER": self.broker,
            "EFFECTS": str(self.effects),
            "NERVE_FAULTS": faults,
            "NERVE_LEASE_SECONDS": "3",
            "NERVE_HEARTBEAT_SECONDS": "0.5",
            "NERVE_GRACE_SECONDS": "2",
        }
        self.running[role] = subprocess.Popen(
            [sys.executable, "-m", "nerve.deploy", role, str(APP), "--dir", self.place / "state"],
            env=environment,
            stdout=log,
            stderr=log,
        )
        log.close()

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.running.pop(role)
        process.send_signal(number)
        process.wait(30)

    def marks(self) -> Counter[str]:
        text = self.effects.read_text() if self.effects.exists() else ""
        return Counter(text.splitlines())


@pytest.fixture
async def hosts(server: NativeServer, tmp_path: Path) -> AsyncGenerator[Hosts]:
    url = server.address(VARIABLE)
    databases = {"brain": await make_database(url), "hands": await make_database(url)}
    made = Hosts(tmp_path, databases)
    yield made
    for role in list(made.running):
        made.kill(role)


@pytest.mark.timeout(170)
@pytest.mark.capability("D16.1")
@pytest.mark.parametrize("broker", ["sqlite", "rabbitmq"])
async def test_nothing_is_lost_or_doubled_through_kills_of_everything(
    server: NativeServer, hosts: Hosts, broker: str
) -> None:
    async with AsyncExitStack() as stack:
        if broker == "rabbitmq":
            hosts.broker = await stack.enter_async_context(virtual_host()) + "?create=true"
        hosts.start("brain")
        hosts.start("hands")
        backend = await stack.enter_async_context(
            await PostgresBackend.open(hosts.databases["brain"])
        )
        runtime = await stack.enter_async_context(DurableRuntime(backend))
        async with asyncio.timeout(150):
            first = await submit(runtime, 0)
            assert await ended(first) == "COMPLETED"
            work = [asyncio.create_task(_one(runtime, n)) for n in range(1, 150)]
            await _shake(server, hosts)
            answers = Counter(await asyncio.gather(*work))
    marks = hosts.marks()
    assert max(marks.values()) == 1, "no effect twice"
    assert len(marks) >= answers["COMPLETED"], "no effect missing"
    assert answers["COMPLETED"] >= 75, answers
    for role in hosts.databases:
        assert _password(hosts.databases[role]) not in (hosts.place / f"{role}.log").read_text()


async def _one(runtime: DurableRuntime, number: int) -> str:
    await asyncio.sleep(number * 0.04)
    return await ended(await submit(runtime, number))


async def _shake(server: NativeServer, hosts: Hosts) -> None:
    await asyncio.sleep(0.7)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    for role in ("brain", "hands"):
        await asyncio.sleep(1.5)
        await asyncio.to_thread(hosts.kill, role)
        hosts.start(role)
    await asyncio.sleep(1)
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)


def _password(url: str) -> str:
    return f":{urlsplit(url).password}@"


@pytest.mark.rule(3)
@pytest.mark.timeout(120)
async def test_a_restart_of_the_server_takes_no_running_tool_away(
    server: NativeServer, hosts: Hosts
) -> None:
    """Every session lock is gone at once; the same incarnations take them again in time."""
    hosts.start("brain")
    hosts.start("hands")
    backend = await PostgresBackend.open(hosts.databases["brain"])
    async with backend, DurableRuntime(backend) as runtime:
        async with asyncio.timeout(100):
            assert await ended(await submit(runtime, 0)) == "COMPLETED"
            before = await _hosts(runtime)
            for _ in range(2):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await asyncio.sleep(3)
            assert await _hosts(runtime) == before, "nobody was released"
            assert await ended(await submit(runtime, 1)) == "COMPLETED"


async def _hosts(runtime: DurableRuntime) -> list[str]:
    from nerve.brain.ledger import queries

    while True:
        try:
            rows = await runtime.ledger.read(lambda tx: queries.live_hosts(tx, "brain"))
            return sorted(row["id"] for row in rows)
        except LedgerUnavailable:
            await asyncio.sleep(0.1)


POINTS = [
    ("brain", "sql.before_commit"),
    ("brain", "sql.in_doubt"),
    ("brain", "brain.advance.after_commit"),
    ("brain", "brain.deliver.after_commit"),
    ("brain", "common.outbox.after_publish"),
    ("hands", "sql.in_doubt"),
    ("hands", "hands.admit.after_commit"),
    ("hands", "hands.finish.before_commit"),
    ("hands", "common.inbox.before_ack"),
]


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("role", "point"), POINTS)
async def test_a_kill_at_any_point_loses_and_doubles_nothing(
    hosts: Hosts, role: str, point: str
) -> None:
    """The point kills its process in the middle of the work; another one goes on."""
    for each in ("brain", "hands"):
        hosts.start(each, f"{point}=kill@2" if each == role else "")
    backend = await PostgresBackend.open(hosts.databases["brain"])
    async with backend, DurableRuntime(backend) as runtime, asyncio.timeout(90):
        work: list[asyncio.Task[str]] = []
        victim = hosts.running.pop(role)
        while victim.poll() is None:
            work.append(asyncio.create_task(_ended(runtime, len(work))))
            await asyncio.sleep(0.05)
        assert victim.returncode == -signal.SIGKILL, victim.returncode
        hosts.start(role)
        answers = Counter(await asyncio.gather(*work))
    assert set(answers) <= {"COMPLETED", "UNKNOWN"}, answers
    assert max(hosts.marks().values()) == 1
    assert len(hosts.marks()) >= answers["COMPLETED"]


async def _ended(runtime: DurableRuntime, number: int) -> str:
    return await ended(await submit(runtime, number))


@pytest.mark.timeout(100)
async def test_hosts_outlive_a_server_without_free_connections(
    server: NativeServer, hosts: Hosts
) -> None:
    """Somebody else takes every connection; whoever lost his waits for the next free one."""
    hosts.start("brain")
    hosts.start("hands")
    async with await PostgresBackend.open(hosts.databases["brain"]) as backend:
        async with DurableRuntime(backend) as runtime, asyncio.timeout(80):
            assert await ended(await submit(runtime, 0)) == "COMPLETED"
            taken = await _take_all(hosts.databases["brain"])
            await asyncio.sleep(2)
            work = asyncio.create_task(_ended(runtime, 1))
            await asyncio.sleep(1)
            for connection in taken:
                await connection.close()
            assert await work == "COMPLETED"


async def _take_all(url: str) -> list["asyncpg.Connection[Any]"]:
    """Every connection of the server, also those that the hosts had."""
    first = await asyncpg.connect(url)
    taken = [first]
    with suppress(asyncpg.TooManyConnectionsError):
        while True:
            taken.append(await asyncpg.connect(url))
    await first.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where backend_type = 'client backend' and application_name = '' and pid <> all($1)",
        [connection.get_server_pid() for connection in taken],
    )
    with suppress(asyncpg.TooManyConnectionsError):
        while True:
            taken.append(await asyncpg.connect(url))
    return taken
