"""Turns submitted all the time while something is done to a server, and what became of each.

Two databases of one server, each reached by its side through a proxy of its own; Brain and Hands are
processes of the command line. What really ran is counted in a file that the tool writes.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from nerve.brain import DurableRuntime, PostgresBackend, Turn
from nerve.protocol.errors import LedgerUnavailable, NerveError, Timeout
from nerve.protocol.identity import SessionKey
from support.servers.native import NativeServer
from support.servers.postgres import VARIABLE, make_database
from support.services import Service
from support.tcp_proxy import TcpProxy

APP = Path(__file__).parents[1] / "e2e" / "servers" / "postgres_app.py"
TABLE = Path("build", "faults", "postgres.jsonl")
SIDES = ("brain", "hands")
QUICK = {
    "NERVE_LEASE_SECONDS": "6",
    "NERVE_HEARTBEAT_SECONDS": "0.5",
    "NERVE_GRACE_SECONDS": "2",
    "NERVE_INQUIRY_SILENCE_SECONDS": "1",
    "NERVE_REPEAT_FIRST_SECONDS": "1",
}
PACE_SECONDS = 0.05
OUTSTANDING = 12
LOG_LINES_PER_SECOND = 1.0


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table of faults."""

    fault: str
    tries: int
    turns: int
    unknown: int
    lost: int
    doubled: int
    moving_seconds: float


@dataclass
class Storm:
    """Hosts on one server, and the means to harm it."""

    server: NativeServer
    place: Path
    databases: dict[str, str]
    """As the hosts and everybody else would reach them without a proxy."""
    proxies: dict[str, TcpProxy]
    broker: str = ""
    app: Path = APP
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    running: dict[str, "subprocess.Popen[bytes]"] = field(
        default_factory=dict[str, "subprocess.Popen[bytes]"]
    )
    submitted: int = 0

    @property
    def effects(self) -> Path:
        return self.place / "effects.txt"

    def through(self, side: str) -> str:
        """The database of a side through its proxy."""
        return at(self.databases[side], self.proxies[side].port)

    def start(self, role: str, replica: int = 1) -> None:
        log = (self.place / f"{role}.log").open("ab")
        environment = os.environ | QUICK | {"NERVE_DATABASE": self.through(role)}
        environment |= {"NERVE_BROKER": self.broker, "EFFECTS": str(self.effects)}
        environment |= self.environment
        name = role if replica == 1 else f"{role}-{replica}"
        self.running[name] = subprocess.Popen(
            [
                *(sys.executable, "-m", "nerve.deploy", role, str(self.app)),
                *("--dir", self.place / "state"),
            ],
            env=environment,
            stdout=log,
            stderr=log,
        )
        log.close()

    def kill(self, role: str) -> None:
        process = self.running.pop(role)
        process.kill()
        process.wait(30)

    def marks(self) -> Counter[str]:
        text = self.effects.read_text() if self.effects.exists() else ""
        return Counter(text.splitlines())

    def log(self, role: str) -> str:
        return (self.place / f"{role}.log").read_text(errors="replace")

    def processes(self) -> list[int]:
        """Every process of the server."""
        pid = int((self.server.directory / "postgres.pid").read_text().split()[0])
        found = subprocess.run(
            ["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False
        )
        return [pid, *map(int, found.stdout.split())]

    @contextmanager
    def frozen(self) -> Generator[None]:
        stopped = self.processes()
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def at(url: str, port: int) -> str:
    parts = urlsplit(url)
    place = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}"
    return urlunsplit((parts.scheme, place, parts.path, parts.query, ""))


@contextmanager
def a_server() -> Generator[NativeServer]:
    """A server of one's own, which may be harmed; the test is skipped where none can be started."""
    server = NativeServer("postgres", programs=["initdb"])
    try:
        Service(name="postgres", variable="", native=[lambda: server.address(VARIABLE)]).address()
        yield server
    finally:
        server.drop()


@contextmanager
def storm(
    server: NativeServer,
    place: Path,
    *,
    replicas: int = 1,
    app: Path = APP,
    broker: str = "",
    environment: Mapping[str, str] | None = None,
) -> Generator[Storm]:
    """Brain and Hands on two databases of `server`, running."""
    url = server.address(VARIABLE)
    port = urlsplit(url).port
    assert port is not None
    databases = {side: asyncio.run(make_database(url)) for side in SIDES}
    with TcpProxy.before("127.0.0.1", port) as one, TcpProxy.before("127.0.0.1", port) as other:
        made = Storm(server, place, databases, {"brain": one, "hands": other}, broker, app)
        made.environment = environment or {}
        try:
            for side in SIDES:
                for number in range(replicas):
                    made.start(side, number + 1)
            yield made
        finally:
            for role in list(made.running):
                made.kill(role)


@asynccontextmanager
async def client(storm: Storm) -> AsyncGenerator[DurableRuntime]:
    """Whoever submits: a process of its own in the field, on a link without a proxy."""
    async with await PostgresBackend.open(storm.databases["brain"]) as backend:
        async with DurableRuntime(backend) as runtime:
            yield runtime


async def submit(runtime: DurableRuntime, number: int, content: str = "go") -> Turn:
    """What a client does: the same request again until it is answered."""
    while True:
        try:
            session = await runtime.session(SessionKey("acme", f"s-{number}"), agent="marker")
            return await session.submit("r", content)
        except NerveError:
            await asyncio.sleep(0.1)


async def ended(turn: Turn) -> str:
    """COMPLETED, or UNKNOWN where nobody can know whether its tool ran."""
    while True:
        try:
            with suppress(Timeout):
                await turn.result(5)
                return "COMPLETED"
            status = await turn.status()
            if any(each.outcome == "UNKNOWN" for each in status.executions):
                return "UNKNOWN"
        except LedgerUnavailable:
            await asyncio.sleep(0.1)


async def during(
    storm: Storm,
    runtime: DurableRuntime,
    fault: str,
    do: Callable[[], Awaitable[None]],
    *,
    tries: int = 3,
    rest_seconds: float = 0.5,
    patience_seconds: float = 60.0,
) -> Row:
    """Harm the server `tries` times under work, and see what became of all that was submitted."""
    stopping = asyncio.Event()
    work: list[asyncio.Task[str]] = []
    driver = asyncio.create_task(_drive(storm, runtime, work, stopping))
    slowest = 0.0
    before = {role: len(storm.log(role).splitlines()) for role in SIDES}
    began = time.monotonic()
    for _ in range(tries):
        await asyncio.sleep(rest_seconds)
        await do()
        slowest = max(slowest, await _moving(storm, runtime, patience_seconds))
    stopping.set()
    await driver
    done, lost = await asyncio.wait(work, timeout=patience_seconds)
    for task in lost:
        task.cancel()
    seconds = time.monotonic() - began
    answers = Counter(task.result() for task in done)
    marks = storm.marks()
    row = Row(
        fault=fault,
        tries=tries,
        turns=len(work),
        unknown=answers["UNKNOWN"],
        lost=len(lost),
        doubled=sum(count > 1 for count in marks.values()),
        moving_seconds=round(slowest, 2),
    )
    _keep(row)
    for role in SIDES:
        _bounded(storm, role, before[role], seconds)
    return row


async def _drive(
    storm: Storm,
    runtime: DurableRuntime,
    work: list[asyncio.Task[str]],
    stopping: asyncio.Event,
) -> None:
    while not stopping.is_set():
        # As many as a slow machine can carry: what piles up would be measured, and not the fault.
        if sum(not task.done() for task in work) < OUTSTANDING:
            work.append(asyncio.create_task(one(storm, runtime)))
        await asyncio.sleep(PACE_SECONDS)


async def one(storm: Storm, runtime: DurableRuntime) -> str:
    storm.submitted += 1
    return await ended(await submit(runtime, storm.submitted))


async def _moving(storm: Storm, runtime: DurableRuntime, seconds: float) -> float:
    """How long until a Turn that is submitted now has run."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        await one(storm, runtime)
    return time.monotonic() - began


def _keep(row: Row) -> None:
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with TABLE.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def _bounded(storm: Storm, role: str, before: int, seconds: float) -> None:
    """Less than a line a second and cause, and no password in any of them."""
    text = storm.log(role)
    lines = text.splitlines()[before:]
    causes = Counter(" ".join(line.split()[1:8]) for line in lines)
    most = causes.most_common(1)
    assert not most or most[0][1] <= LOG_LINES_PER_SECOND * seconds + 5, most
    for url in storm.databases.values():
        assert f":{urlsplit(url).password}@" not in text
