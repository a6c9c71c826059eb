"""Named points where tests break things; free unless armed by `NERVE_FAULTS` or by `arm`.

`NERVE_FAULTS="brain.park.before_commit=kill@3;common.broker.*=record"`: what happens (kill, stop, raise,
delay:MS, record) at which hit (`@N` the N-th, `@*` each; kill, stop and raise default to `@1`, the
others to `@*`). A name may be a pattern. Each hit that acts is appended to `NERVE_FAULTS_LOG` first, so
that a parent learns which point a killed process died at.
"""

import asyncio
import fnmatch
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import final


class InjectedFault(Exception):
    """A fault point armed with `raise` was reached."""


class FaultKind(StrEnum):
    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"
    DELAY = "delay"
    RECORD = "record"


_ONCE = frozenset({FaultKind.KILL, FaultKind.STOP, FaultKind.RAISE})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    pattern: str
    kind: FaultKind
    delay_seconds: float = 0.0
    hit: int | None = None
    """Which hit acts; None means each."""

    def matches(self, name: str) -> bool:
        return name == self.pattern or fnmatch.fnmatchcase(name, self.pattern)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One line of the fault log."""

    pid: int
    name: str
    count: int
    kind: FaultKind


_armed = False
_lock = threading.Lock()
_rooms: dict[str, str] = {}
_rules: list[Rule] = []
_hooks: dict[str, Callable[[], object]] = {}
_rule_hits: Counter[int] = Counter()
_recorded: Counter[str] = Counter()
_log_path: str | None = None


def register(room: str, names: Iterable[str]) -> None:
    """Announce the fault points of a room. Registering a name again is harmless."""
    for name in names:
        if not name.startswith(f"{room}."):
            raise ValueError(
                f"fault point {name!r} of room {room!r} must start with {room + '.'!r}"
            )
        _rooms[name] = room


def names(room: str | None = None) -> tuple[str, ...]:
    """Every registered point, or those of one room, sorted."""
    return tuple(sorted(name for name, owner in _rooms.items() if room in (None, owner)))


def point(name: str) -> None:
    """A place where a test may break the process."""
    if _armed:
        seconds = _reach(name)
        if seconds:
            time.sleep(seconds)


async def apoint(name: str) -> None:
    """As `point`, but a delay lets the event loop go on."""
    if _armed:
        seconds = _reach(name)
        if seconds:
            await asyncio.sleep(seconds)


def parse(specification: str) -> list[Rule]:
    """Read the notation of `NERVE_FAULTS`."""
    return [_parse_rule(part) for part in specification.split(";") if part.strip()]


def arm(specification: str = "", *, log: str | Path | None = None) -> None:
    """Add rules. Points count their hits from the moment of arming."""
    global _armed, _log_path
    with _lock:
        _rules.extend(parse(specification))
        if log is not None:
            _log_path = str(log)
        _armed = bool(_rules or _hooks)


def hook(name: str, callback: Callable[[], object]) -> None:
    """Call `callback` at each hit of a point, so that a test can order two tasks or raise its own error."""
    global _armed
    with _lock:
        _hooks[name] = callback
        _armed = True


def disarm() -> None:
    """Forget every rule, hook and count; registered names stay."""
    global _armed, _log_path
    with _lock:
        _armed = False
        _log_path = None
        _rules.clear()
        _hooks.clear()
        _rule_hits.clear()
        _recorded.clear()


@contextmanager
def armed(specification: str, *, log: str | Path | None = None) -> Generator[None]:
    """Rules for the length of a block; afterwards everything is disarmed."""
    arm(specification, log=log)
    try:
        yield
    finally:
        disarm()


def hits() -> dict[str, int]:
    """How often each point was reached while anything was armed."""
    with _lock:
        return dict(_recorded)


def unknown_rules() -> list[str]:
    """Armed patterns that match no registered point: a misspelt name must not pass as a survived kill."""
    return sorted({rule.pattern for rule in _rules if not any(map(rule.matches, _rooms))})


def read_log(path: str | Path) -> list[Hit]:
    """What the processes that share a fault log have reached so far."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    hits: list[Hit] = []
    for line in lines:
        pid, name, count, kind = line.split(" ")
        hits.append(Hit(pid=int(pid), name=name, count=int(count), kind=FaultKind(kind)))
    return hits


def _parse_rule(part: str) -> Rule:
    pattern, separator, action = part.strip().partition("=")
    action, _, at = action.partition("@")
    kind_name, _, argument = action.partition(":")
    try:
        kind = FaultKind(kind_name.strip())
        delay_seconds = float(argument) / 1000 if argument else 0.0
        hit = (1 if kind in _ONCE else None) if not at else None if at == "*" else int(at)
    except ValueError:
        separator = ""
        raise ValueError(_malformed(part)) from None
    if not separator or not pattern:
        raise ValueError(_malformed(part))
    return Rule(pattern=pattern.strip(), kind=kind, delay_seconds=delay_seconds, hit=hit)


def _malformed(part: str) -> str:
    return (
        f"NERVE_FAULTS holds {part.strip()!r}, which is not NAME=KIND@N; "
        "KIND is kill, stop, raise, delay:MS or record, N a number or *"
    )


def _reach(name: str) -> float:
    """Count the hit and do what the rules say; the seconds to wait are left to the caller."""
    if name not in _rooms:
        raise AssertionError(f"fault point {name!r} is not registered; add it to its room's table")
    with _lock:
        _recorded[name] += 1
        due = [
            rule for index, rule in enumerate(_rules) if rule.matches(name) and _due(index, rule)
        ]
        callback = _hooks.get(name)
        count = _recorded[name]
    delay_seconds = 0.0
    for rule in due:
        _write_log(name, count, rule.kind)
        delay_seconds += _act(name, rule)
    if callback is not None:
        callback()
    return delay_seconds


def _due(index: int, rule: Rule) -> bool:
    _rule_hits[index] += 1
    return rule.hit is None or rule.hit == _rule_hits[index]


def _act(name: str, rule: Rule) -> float:
    match rule.kind:
        case FaultKind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        case FaultKind.STOP:
            # To this thread: sent to the process, it would let a thread other than the main one
            # run on for a while, past the very place at which it is to stand still.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        case FaultKind.RAISE:
            raise InjectedFault(f"armed fault at {name}")
        case FaultKind.DELAY:
            return rule.delay_seconds
        case FaultKind.RECORD:
            pass
    return 0.0


def _write_log(name: str, count: int, kind: FaultKind) -> None:
    if _log_path is None:
        return
    descriptor = os.open(_log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, f"{os.getpid()} {name} {count} {kind}\n".encode())
    finally:
        os.close(descriptor)


if os.environ.get("NERVE_FAULTS") or os.environ.get("NERVE_FAULTS_LOG"):
    arm(os.environ.get("NERVE_FAULTS", ""), log=os.environ.get("NERVE_FAULTS_LOG"))
