"""What really happened, counted outside our ledgers: a tool writes a line when it is entered and at its effect.

Each line is one write with O_APPEND, so that processes share the file and a killed one tears nothing.
"""

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

ENTERED = "entered"
EFFECT = "effect"
ASKED = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One line: what happened to whom, where and when (monotonic, which processes share here)."""

    kind: str
    subject: str
    attempt: int
    pid: int
    at: float
    wall_ms: int
    name: str


def write(path: Path | str, kind: str, subject: str, attempt: int = 1, name: str = "-") -> None:
    line = (
        f"{kind} {subject} {attempt} {os.getpid()} {time.monotonic():.6f}"
        f" {time.time_ns() // 1_000_000} {name}\n"
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def read(path: Path) -> list[Mark]:
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return []
    marks: list[Mark] = []
    for line in text.splitlines():
        kind, subject, attempt, pid, at, wall, name = line.split(" ")
        marks.append(
            Mark(
                kind=kind,
                subject=subject,
                attempt=int(attempt),
                pid=int(pid),
                at=float(at),
                wall_ms=int(wall),
                name=name,
            )
        )
    return marks


@dataclass(slots=True)
class Effects:
    """The counts of one effect file."""

    entered: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    done: Counter[str] = field(default_factory=Counter[str])
    tools: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.of(read(path))

    @classmethod
    def of(cls, marks: Iterable[Mark]) -> Self:
        found = cls()
        for mark in marks:
            found.tools[mark.subject] = mark.name
            if mark.kind == ENTERED:
                found.entered[mark.subject, mark.attempt] += 1
            elif mark.kind == EFFECT:
                found.done[mark.subject] += 1
        return found

    def was_entered(self, execution: str, attempt: int) -> bool:
        return self.entered[execution, attempt] > 0

    def starts(self, execution: str) -> int:
        return sum(count for (each, _), count in self.entered.items() if each == execution)

    def doubled(self, repeatable: frozenset[str]) -> list[str]:
        """Executions that took effect, or were entered, more often than their binding allows."""
        found = {
            execution
            for execution, count in self.done.items()
            if count > 1 and self.tools[execution] not in repeatable
        }
        for (execution, _), count in self.entered.items():
            if count > 1 or (
                self.starts(execution) > 1 and self.tools[execution] not in repeatable
            ):
                found.add(execution)
        return sorted(found)
