"""`nerve demo` as a real process, with its JSON lines and the processes that it names."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from nerve.common.process import started

Line = dict[str, Any]


class DemoRun:
    """One run, whose temporary folders are made below `folder`. It never outlives its block."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.lines: list[Line] = []
        self._errors = folder / "stderr"
        environment = {**os.environ, "TMPDIR": str(self.temporary), "NO_COLOR": "1"}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nerve.deploy", "demo", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def until(self, event: str, **fields: object) -> Line:
        """Read on to the first line of this event with these fields."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line: Line = json.loads(text)
            self.lines.append(line)
            wanted = {"event": event, **fields}
            if wanted.items() <= line.items():
                return line
        raise AssertionError(f"it ended without {event} {fields}: {self.errors}")

    def end(self) -> int:
        """Read the rest; the exit code."""
        assert self.process.stdout is not None
        self.lines += [json.loads(text) for text in self.process.stdout]
        return self.process.wait(timeout=30)

    @property
    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def of(self, event: str) -> list[Line]:
        return [line for line in self.lines if line.get("event") == event]

    @property
    def pids(self) -> list[int]:
        return [line["pid"] for line in self.of("started")]

    @property
    def running(self) -> list[int]:
        """Those of its processes that still run."""
        return [pid for pid in self.pids if started(pid) is not None]

    @property
    def folders(self) -> list[Path]:
        """What it left among the temporary files."""
        return list(self.temporary.iterdir())


def file_lines(path: Path) -> list[Line]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
