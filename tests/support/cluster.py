"""Brains and Hands as processes on one directory: started, frozen, killed by pid, and never left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nerve.common import faults, writelock
from support.cluster_host import READY

FAST: Mapping[str, str] = {
    "NERVE_LOG_LEVEL": "WARNING",
    "NERVE_SCAN_SECONDS": "0.1",
    "NERVE_SWEEP_SECONDS": "0.1",
    "NERVE_GRACE_SECONDS": "0.5",
    "NERVE_LEASE_SECONDS": "20",
    "NERVE_HEARTBEAT_SECONDS": "1",
    "NERVE_INQUIRY_SILENCE_SECONDS": "0.4",
    "NERVE_INQUIRY_MOST_SECONDS": "2",
    "NERVE_REPEAT_FIRST_SECONDS": "0.4",
    "NERVE_REPEAT_MOST_SECONDS": "2",
    "NERVE_ADMISSION_REPORT_SECONDS": "0.1",
    "NERVE_BROKER_POLL_SECONDS": "0.1",
    "NERVE_OUTBOX_RESEND_SECONDS": "0.5",
    "NERVE_DRAIN_SECONDS": "5",
}
"""Waits are short and laws are the same; what only a hint would bring comes by a scan soon."""

PRODUCTION: Mapping[str, str] = {"NERVE_LOG_LEVEL": "WARNING"}


class Forge:
    """The parent of every process of a test run."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        tests = Path(__file__).parents[1]
        paths = [str(tests), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.cluster_fork"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        )
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._ready = False
        self._count = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._wait(lambda: self._ready, "the fork server is ready")

    def fork(
        self, target: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> tuple[int, int]:
        """(number, pid) of a new process that calls `module:function` with `arguments`."""
        with self._changed:
            self._count += 1
            number = self._count
        request = {
            "id": number,
            "target": target,
            "arguments": list(arguments),
            "environment": dict(environment),
            "output": str(output),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        self._wait(lambda: number in self._pids, "a process was forked")
        return number, self._pids[number]

    def status(self, number: int) -> int | None:
        """How a process ended: its exit code, or minus the signal; None while it runs."""
        return self._ended.get(number)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            with self._changed:
                if "ready" in event:
                    self._ready = True
                elif "forked" in event:
                    self._pids[event["forked"]] = event["pid"]
                else:
                    self._ended[event["ended"]] = event["status"]
                self._changed.notify_all()

    def _wait(self, fact: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(fact, 60):
                raise AssertionError(f"within 60 s: {what}")


class Node:
    """One process of a cluster."""

    def __init__(
        self, forge: Forge, role: str, number: int, pid: int, output: Path, log: Path
    ) -> None:
        self.role = role
        self.pid = pid
        self.output = output
        self.log = log
        self.killed_at: float | None = None
        self._number = number
        self._forge = forge

    @property
    def status(self) -> int | None:
        return self._forge.status(self._number)

    @property
    def running(self) -> bool:
        return self.status is None

    def is_ready(self) -> bool:
        return READY in self.text().splitlines()

    def text(self) -> str:
        """What it printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def hits(self) -> list[faults.Hit]:
        """Fault points that acted in it."""
        return [hit for hit in faults.read_log(self.log) if hit.pid == self.pid]

    async def ready(self, seconds: float = 20.0) -> "Node":
        await self._until(lambda: self.is_ready() or not self.running, seconds, "is ready")
        if not self.is_ready():
            raise AssertionError(f"{self.role} ended with {self.status}: {self.text()[-3000:]}")
        return self

    async def up(self, seconds: float = 20.0) -> bool:
        """Ready, or already dead of an armed fault."""
        await self._until(lambda: self.is_ready() or not self.running, seconds, "is up")
        return self.running

    async def ended(self, seconds: float = 20.0) -> int:
        await self._until(lambda: not self.running, seconds, "ended")
        status = self.status
        assert status is not None
        return status

    def is_stopped(self) -> bool:
        return writelock.is_stopped(self.pid)

    async def stopped(self, seconds: float = 20.0) -> bool:
        """Whether it stands still by then: SIGSTOP reaches a process a little after it was sent."""
        with suppress(AssertionError):
            await self._until(self.is_stopped, seconds, "stands still")
        return self.is_stopped()

    async def stopped_or_ready(self) -> None:
        await self._until(lambda: self.is_stopped() or self.is_ready(), 20, "is up")

    def signal(self, number: int) -> None:
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        self.killed_at = time.monotonic()
        self.signal(signal.SIGKILL)
        await self.ended()

    async def terminate(self, seconds: float = 20.0) -> int:
        self.signal(signal.SIGTERM)
        return await self.ended(seconds)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    async def _until(self, fact: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"within {seconds:g} s {self.role} (pid {self.pid}) {what}: "
                    f"{self.text()[-3000:]}"
                )
            await asyncio.sleep(0.003)


class Cluster:
    """The processes of one test: `place` holds the state directory and what is counted outside it."""

    def __init__(
        self, forge: Forge, place: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.place = place
        self.state = place / "state"
        self.environment = dict(FAST if environment is None else environment)
        self.nodes: list[Node] = []
        self._forge = forge
        place.mkdir(parents=True, exist_ok=True)

    def start(self, role: str, *, faults: str = "", **environment: str) -> Node:
        """A host process; `faults` in the notation of NERVE_FAULTS, `environment` beside ours."""
        arguments = (role, str(self.state), str(self.place))
        return self.run(role, "support.cluster_host:serve", arguments, faults, environment)

    def client(self, acks: Path, kinds: Sequence[str], *, faults: str = "") -> Node:
        """A process that submits and ends."""
        arguments = (str(self.state), str(acks), *kinds)
        return self.run("client", "support.cluster_host:client", arguments, faults, {})

    def operator(self, *, faults: str = "") -> Node:
        """A process that reconciles and ends."""
        arguments = (str(self.state), str(self.place))
        return self.run("operator", "support.cluster_host:operator", arguments, faults, {})

    def run(
        self,
        role: str,
        target: str,
        arguments: Sequence[str],
        faults: str,
        environment: Mapping[str, str],
    ) -> Node:
        name = f"{len(self.nodes):04d}-{role}"
        output = self.place / "logs" / f"{name}.txt"
        log = self.place / "logs" / f"{name}.faults"
        given = {
            **self.environment,
            **environment,
            "NERVE_FAULTS": faults,
            "NERVE_FAULTS_LOG": str(log),
        }
        number, pid = self._forge.fork(target, arguments, given, output)
        node = Node(self._forge, role, number, pid, output, log)
        self.nodes.append(node)
        return node

    def of(self, role: str) -> list[Node]:
        """Its running processes of a role."""
        return [node for node in self.nodes if node.role == role and node.running]

    async def freeze_outside(self, node: Node) -> None:
        """Freeze a process that is not inside a write transaction of any file of the directory."""
        while True:
            node.freeze()
            if all(writelock.holder(file) != node.pid for file in self.state.glob("*.db")):
                return
            node.thaw()
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            await node.ended()


@contextmanager
def forge() -> Generator[Forge]:
    """The fork server for the length of a block."""
    made = Forge()
    try:
        yield made
    finally:
        made.close()
