"""Brain and Hands as a user starts them: processes of the command line on one directory, and an API-only client."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from nerve.brain.handles import Session, Turn
from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.runtime import DurableRuntime
from nerve.common.sql import Statement, sql
from nerve.common.sql.sqlite import connect
from nerve.protocol.errors import NerveError
from nerve.protocol.identity import SessionKey
from support.waiting import until

START_SECONDS = 60.0
QUICK = {
    "NERVE_SCAN_SECONDS": "0.2",
    "NERVE_SWEEP_SECONDS": "0.1",
    "NERVE_GRACE_SECONDS": "0.1",
    "NERVE_BROKER_POLL_SECONDS": "0.2",
    "NERVE_REPEAT_FIRST_SECONDS": "0.5",
    "NERVE_REPEAT_MOST_SECONDS": "2",
    "NERVE_INQUIRY_SILENCE_SECONDS": "1",
    "NERVE_DRAIN_SECONDS": "5",
}


@dataclass(slots=True)
class Process:
    """One process of the command line with everything that it said."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def is_ready(self) -> bool:
        if self.process.returncode is not None:
            raise AssertionError(f"it ended with {self.process.returncode}: {self.said()}")
        return '"event":"ready"' in self.said().replace(" ", "")

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@dataclass(slots=True)
class Apart:
    """A place with a state directory, an app file and the processes that were started on it."""

    place: Path
    app: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    processes: list[Process] = field(default_factory=list[Process])

    @property
    def state(self) -> Path:
        return self.place / "state"

    @property
    def effects(self) -> list[str]:
        """Lines that tools wrote outside of every ledger."""
        file = self.place / "effects.txt"
        return file.read_text().split("\n")[:-1] if file.exists() else []

    async def brain(self, **environment: str) -> Process:
        return await self.start("brain", str(self.app), **environment)

    async def hands(self, **environment: str) -> Process:
        return await self.start("hands", str(self.app), **environment)

    async def start(self, *arguments: str, **environment: str) -> Process:
        """A host, once it says that it is up."""
        process = await self.spawn(*arguments, **environment)
        await until(process.is_ready, f"{arguments[0]} is up", START_SECONDS)
        return process

    async def spawn(self, *arguments: str, **environment: str) -> Process:
        log = self.place / f"{len(self.processes)}-{arguments[0]}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "nerve.deploy",
                *arguments,
                "--dir",
                str(self.state),
                "--json",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    **QUICK,
                    **self._own(),
                    "PYTHONPATH": python_path(),
                    **self.environment,
                    **environment,
                },
            )
        started = Process(process, log)
        self.processes.append(started)
        return started

    async def run(self, *arguments: str, input: bytes = b"") -> tuple[int, Any, str]:
        """A command with its exit code, its JSON answer and what it said beside it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "nerve.deploy",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **QUICK, "NERVE_DIR": str(self.state)},
        )
        out, err = await process.communicate(input)
        assert process.returncode is not None
        lines = out.decode().strip().splitlines()
        answer = orjson.loads(lines[-1]) if lines and "--json" in arguments else out.decode()
        return process.returncode, answer, err.decode()

    def rows(self, ledger: str, query: str) -> Sequence[dict[str, Any]]:
        """Rows of a ledger as they stand committed."""
        statement: Statement = sql(query)
        connection = connect(self.state / f"{ledger}.db", read_only=True, busy_seconds=5.0)
        try:
            return [dict(row) for row in connection.execute(statement.sqlite).fetchall()]
        finally:
            connection.close()

    def _own(self) -> dict[str, str]:
        return {"APART_PLACE": str(self.place)}


def python_path() -> str:
    """As here, and with the modules that tests share."""
    tests = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))


@asynccontextmanager
async def apart(place: Path, app: Path, **environment: str) -> AsyncGenerator[Apart]:
    """The processes end with the block, whatever they are doing."""
    made = Apart(place=place, app=app, environment=environment)
    try:
        yield made
    finally:
        for process in made.processes:
            await process.kill()


@dataclass(slots=True)
class Client:
    """An API-only host of this process."""

    runtime: DurableRuntime

    async def session(self, name: str, agent: str) -> Session:
        """The Session, as soon as a Brain offers the agent."""
        while True:
            try:
                return await self.runtime.session(SessionKey("acme", name), agent=agent)
            except NerveError:
                await asyncio.sleep(0.05)

    async def submit(self, name: str, agent: str, text: str) -> Turn:
        session = await self.session(name, agent)
        return await session.submit("r-1", text)


@asynccontextmanager
async def client(at: Apart) -> AsyncGenerator[Client]:
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend.open(at.state))
        runtime = await stack.enter_async_context(DurableRuntime(backend))
        yield Client(runtime)
