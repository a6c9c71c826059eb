"""The processes of the demo seen from their parent: started, watched for facts, killed, reaped.

A process that is to be killed is stopped by a fault point first, so that the kill happens exactly
there. The kill itself is always a SIGKILL that the parent sends.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, Self, cast, final

from nerve.common import faults
from nerve.common.clock import Clock
from nerve.deploy.demo import places

FACT_SECONDS = 25.0
LOOK_SECONDS = 0.004
STOP_SECONDS = 8.0
LOG_CHARACTERS = 600
LAUNCHER = "nerve.deploy.demo.child"


class DemoFailed(Exception):
    """Something did not happen as it must; the text says what."""


class Role(StrEnum):
    MODEL = "model"
    BRAIN = "brain"
    HANDS = "hands"


@final
class Child:
    """One process. Times are milliseconds since the epoch."""

    def __init__(
        self, role: Role, popen: "subprocess.Popen[bytes]", log: Path, hits: Path, clock: Clock
    ) -> None:
        self.role = role
        self.pid = popen.pid
        self.log = log
        self.born = clock.now_ms()
        self.up: int | None = None
        self.died: int | None = None
        self.killed = False
        self._popen = popen
        self._hits = hits
        self._clock = clock
        self.stopped = False

    @property
    def running(self) -> bool:
        return self.died is None

    def look(self) -> None:
        """Take in what the kernel says: a stop, or the end."""
        if not self.running:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            self._take(status)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if not self.running:
            return
        os.kill(self.pid, signal.SIGKILL)
        self.killed = True
        while self.running:
            self._take(os.waitpid(self.pid, 0)[1])

    def ask_to_stop(self) -> None:
        if self.running:
            os.kill(self.pid, signal.SIGTERM)

    def is_at(self, point: str) -> bool:
        """Whether it stands still at a fault point."""
        return self.stopped and any(hit.name == point for hit in faults.read_log(self._hits))

    def said(self, event: str) -> bool:
        """Whether its log has a line of this event and pid."""
        return any(
            line.get("event") == event and line.get("pid") == self.pid for line in self._lines()
        )

    def last_words(self) -> str:
        """The end of its log, for whoever looks for the reason."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""
        return f"Its log ends: {text[-LOG_CHARACTERS:]}" if text else "Its log is empty."

    def __str__(self) -> str:
        return f"{self.role} process (pid {self.pid})"

    def _lines(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                read = json.loads(line)
            except ValueError:
                continue
            if isinstance(read, dict):
                found.append(cast("dict[str, object]", read))
        return found

    def _take(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self.stopped = True
            return
        self.died = self._clock.now_ms()
        self._popen.returncode = os.waitstatus_to_exitcode(status)


@final
class Processes:
    """Every process that the demo started. None of them outlives the block."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._pipe = os.pipe()
        self.all: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self.all:
            child.kill()
        for descriptor in self._pipe:
            os.close(descriptor)

    def model(self) -> Child:
        script, log, port = (
            str(self._root / name) for name in (places.SCRIPT, places.REQUESTS, places.PORT)
        )
        told = ["--script", script, "--log", log, "--port", "0", "--port-file", port]
        return self._start(Role.MODEL, ["nerve.brain.agents.scripted_server", *told])

    def brain(self, faults: str = "") -> Child:
        return self._start(Role.BRAIN, ["nerve.deploy", "brain", *self._told()], faults)

    def hands(self, slots: int, faults: str = "") -> Child:
        told = ["hands", *self._told(), "--slots", str(slots)]
        return self._start(Role.HANDS, ["nerve.deploy", *told], faults)

    def check(self) -> None:
        """Raises DemoFailed where a process ended that nobody killed."""
        for child in self.all:
            child.look()
            if not child.running and not child.killed:
                raise DemoFailed(f"the {child} ended by itself. {child.last_words()}")

    async def until(self, child: Child, fact: Callable[[], object], what: str) -> None:
        """Wait for a fact of one process; none may end before it. Raises DemoFailed."""
        deadline = self._clock.monotonic() + FACT_SECONDS
        while not fact():
            self.check()
            if self._clock.monotonic() > deadline:
                raise DemoFailed(
                    f"within {FACT_SECONDS:g} s, {what}: the {child} did not. {child.last_words()}"
                )
            await self._clock.sleep(LOOK_SECONDS)

    async def stopped_at(self, child: Child, point: str) -> None:
        """Wait until a process stands still at a fault point."""
        await self.until(child, lambda: child.is_at(point), f"it should come to {point}")

    async def model_ready(self, child: Child) -> None:
        port = self._root / places.PORT
        await self.until(child, port.exists, "it should listen")
        child.up = self._clock.now_ms()

    async def ready(self, child: Child) -> None:
        await self.until(child, lambda: child.stopped or child.said("ready"), "it should be ready")
        child.up = child.up or self._clock.now_ms()

    async def stop(self) -> None:
        """Let hosts finish; after a while, kill what is left."""
        for child in self.all:
            child.ask_to_stop()
        deadline = self._clock.monotonic() + STOP_SECONDS
        while any(child.running for child in self.all) and self._clock.monotonic() < deadline:
            for child in self.all:
                child.look()
            await self._clock.sleep(LOOK_SECONDS)
        for child in self.all:
            child.kill()

    def _told(self) -> list[str]:
        return [str(self._root / places.APP), "--dir", str(self._root / places.STATE), "--json"]

    def _start(self, role: Role, arguments: Sequence[str], faults: str = "") -> Child:
        number = 1 + sum(child.role is role for child in self.all)
        hits = self._root / f"{role}-{number}.faults"
        log = self._root / f"{role}.log"
        reading, _ = self._pipe
        # -P: nothing that happens to stand in the current folder is imported.
        launcher = [sys.executable, "-P", "-m", LAUNCHER, str(os.getpid()), str(reading)]
        with log.open("ab") as output:
            popen = self._popen([*launcher, *arguments], output, _environment(faults, hits))
        child = Child(role, popen, log, hits, self._clock)
        self.all.append(child)
        return child

    def _popen(
        self, command: Sequence[str], output: IO[bytes], environment: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        # A group of its own: Ctrl-C of the terminal reaches the parent, which ends its children.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            pass_fds=[self._pipe[0]],
            process_group=0,
        )


def _environment(armed: str, hits: Path) -> dict[str, str]:
    """What the children inherit: nobody's settings but the shipped ones, and the fault to wait at."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NERVE_")}
    if armed:
        kept |= {"NERVE_FAULTS": armed, "NERVE_FAULTS_LOG": str(hits)}
    return kept
