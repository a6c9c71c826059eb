"""The command line as users have it: real processes in a folder, with facts to wait for in what they print."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from nerve.deploy.entry import run as run_command

SECONDS = 30.0
NERVE = (sys.executable, "-m", "nerve.deploy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON value on standard output."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The JSON object that an error is on standard error."""
        found: dict[str, Any] = json.loads(self.err.splitlines()[-1])["error"]
        return found


class Running:
    """A command that goes on; everything it prints is kept."""

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self.process = process
        self.name = name
        self._lines: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    @property
    def events(self) -> list[dict[str, Any]]:
        """JSON lines so far."""
        return [json.loads(line) for line in self._lines if line.startswith("{")]

    def said(self, text: str, seconds: float = SECONDS) -> None:
        """Wait until it printed `text`."""
        self._until(lambda: text in self.text, f"print {text!r}", seconds)

    def event(self, name: str, seconds: float = SECONDS, **fields: Any) -> dict[str, Any]:
        """Wait for a JSON line with this event and these fields."""

        def found() -> dict[str, Any] | None:
            for each in self.events:
                if each.get("event") == name and fields.items() <= each.items():
                    return each
            return None

        self._until(lambda: found() is not None, f"report {name} {fields}", seconds)
        event = found()
        assert event is not None
        return event

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait(SECONDS)

    def stop(self, seconds: float = SECONDS) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(seconds)

    def ended(self, seconds: float = SECONDS) -> int:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end; it printed:\n{self.text}") from None
        for thread in self._threads:
            thread.join(5)
        return code

    def _until(self, fact: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > deadline or (self.process.poll() is not None and self._quiet()):
                if fact():
                    return
                raise AssertionError(f"{self.name} did not {what}; it printed:\n{self.text}")
            time.sleep(0.005)

    def _quiet(self) -> bool:
        for thread in self._threads:
            thread.join(5)
        return True

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._lines.append(line.rstrip("\n"))


class Terminal:
    """A folder in which commands run; whatever still runs at the end is killed."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NERVE_")},
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "100",
            **(environment or {}),
        }
        self._started: list[Running] = []

    def run(self, *arguments: str, input: str | None = None, **env: str) -> Done:
        """Run `nerve ARGUMENTS` to its end."""
        ended = subprocess.run(
            [*NERVE, *arguments],
            cwd=self.folder,
            env={**self.environment, **env},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        return Done(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def here(self, *arguments: str) -> Done:
        """As `run`, inside this very process: for commands whose end is all that matters."""
        out, err = StringIO(), StringIO()
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
            code = run_command(arguments)
        assert "Traceback" not in err.getvalue(), err.getvalue()
        return Done(code=code, out=out.getvalue(), err=err.getvalue())

    def start(self, *arguments: str, **env: str) -> Running:
        """Run `nerve ARGUMENTS` beside the test."""
        process = subprocess.Popen(
            [*NERVE, *arguments],
            cwd=self.folder,
            env={**self.environment, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running = Running(process, " ".join(arguments))
        self._started.append(running)
        return running

    def host(self, *arguments: str, **env: str) -> Running:
        """Start a host and wait until it is up."""
        running = self.start(*arguments, "--json", **env)
        running.event("ready")
        return running

    def close(self) -> None:
        for running in self._started:
            if running.process.poll() is None:
                running.kill()
            for stream in (running.process.stdout, running.process.stderr):
                if stream is not None:
                    running.ended(5)
                    stream.close()

    def turns(self) -> Sequence[dict[str, Any]]:
        found: Sequence[dict[str, Any]] = self.here("ls", "--json").value["turns"]
        return found


def until(fact: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Return once `fact()` holds. A question that costs much is asked less often: it would take the time
    of those who are to bring the fact about."""
    deadline = time.monotonic() + seconds
    asked = time.monotonic()
    while not fact():
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"within {seconds:g} s: {what}")
        time.sleep(max(0.01, now - asked))
        asked = time.monotonic()
