"""Which process reaches which fault point, and what it takes to get it there."""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from nerve.common import faults

ONE, TWO, FOUR, MEMORY = "one process", "two processes", "two of each role", "memory broker"
SERVERS = "servers"
"""Two processes, whose ledgers and broker are servers."""

ROOMS = ("brain.", "common.", "hands.", "sql.")

RARE = (
    "common.retention.*",
    "brain.pull_ahead.*",
    "brain.set_aside.*",
    "brain.wake_idle_waiters.*",
    "common.objects.files.*",
    "hands.forget.*",
)
"""What no healthy run reaches; `test_rare_points` brings each about by hand."""

LARGE = (
    "common.large.*",
    "common.inbox.begin_try.*",
    "common.inbox.done.*",
    "common.inbox.drop.*",
    "common.inbox.give_up.*",
    "common.inbox.hold.*",
    "common.inbox.replay.*",
    "common.inbox.uncount.*",
)
"""What only large values reach: `test_large` stops a writer and a collector there, `e2e/objects` kills hosts."""

ELSEWHERE = (
    "brain.meet.*",
    "common.http.*",
    "common.hub.*",
    "common.rabbitmq.*",
    "common.rocketmq.*",
    "common.broker.ro*",
    "common.objects.s3.*",
    *LARGE,
)
"""Points of brokers that need a server or a hub, and of large values: their own tests stop there."""

OF_THE_DIRECTORY = (
    "common.broker.sqlite.*",
    "common.lives.*",
    "common.inbox.done.*",
    "common.inbox.drop.*",
    "common.inbox.give_up.*",
    "common.inbox.refuse.*",
    "common.inbox.replay.*",
    "brain.not_found.*",
)
"""Points of files, of an operator, and what a file tells the matrix."""

OPERATOR = ("hands.claim_unknown.*", "hands.reconcile.*")
CLIENT = (
    "brain.cancel.*",
    "brain.close.*",
    "brain.open_session.*",
    "brain.open_thread.*",
    "brain.submit.*",
    "sql.*",
)
NOT_BRAIN = (
    "brain.cancel.*",
    "brain.close.*",
    "brain.open_*",
    "brain.submit.*",
    "common.lives.*",
)
BROKER = ("brain.not_found.*", "brain.remote.*", "common.broker.*", "common.inbox.*")
OF_MEMORY = "common.broker.memory.*"
IN_MEMORY = (OF_MEMORY, "brain.remote.*", "common.inbox.received", "common.inbox.*_ack")

NEEDED = (
    ("hands.append_output.*", "written"),
    ("hands.report_progress.*", "slow"),
    ("hands.fail_missing.*", "absent"),
    ("hands.bar.*", "forbidden"),
    ("hands.observe.*", "late"),
    ("hands.start.*", "many"),
    ("hands.controls.*", "slow"),
    ("brain.inquire.*", "absent"),
    ("brain.local.*", "local"),
)
"""Which kind of Turn a point needs beside the usual mix."""

AFTER_AN_ERROR = (("hands.abandon.*", "hands.engine.after_tool=raise@1"),)

AT_THE_END = (
    "brain.give_back.*",
    "common.lease.*unlock",
    "common.lease.drain.*",
    "common.lease.release.*",
)
"""Points of an orderly stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kill to make."""

    role: str
    point: str
    hit: int = 1

    def __str__(self) -> str:
        return f"{self.role} at {self.point}@{self.hit}"


def load_all() -> None:
    """Import every module of the rooms, so that every point is registered."""
    for room in ("nerve.common", "nerve.brain", "nerve.hands"):
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, f"{room}."):
            if ".migrations" not in module.name:
                importlib.import_module(module.name)


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def cases(arrangement: str) -> Iterator[Case]:
    """Every (role, point) of an arrangement, once."""
    load_all()
    for name in faults.names():
        if not name.startswith(ROOMS) or matches(name, (*RARE, *ELSEWHERE)):
            continue
        if arrangement == SERVERS and matches(name, OF_THE_DIRECTORY):
            continue
        for role in _roles(arrangement, name):
            yield Case(role=role, point=name)


def kinds_for(point: str) -> list[str]:
    return [kind for pattern, kind in NEEDED if fnmatch(point, pattern)]


def also_armed(point: str) -> list[str]:
    """Errors without which a healthy process never gets to the point."""
    return [armed for pattern, armed in AFTER_AN_ERROR if fnmatch(point, pattern)]


def _roles(arrangement: str, name: str) -> list[str]:
    if arrangement == MEMORY:
        return ["both"] if matches(name, IN_MEMORY) else []
    if fnmatch(name, OF_MEMORY):
        return []
    roles: list[str] = []
    if matches(name, OPERATOR):
        return ["operator"]
    if matches(name, CLIENT):
        roles.append("client")
    if arrangement == ONE:
        unreached = (*NOT_BRAIN[:-1], *BROKER)
        return roles if matches(name, unreached) else [*roles, "both"]
    if name.startswith(("brain.", "common.", "sql.")) and not matches(name, NOT_BRAIN):
        roles.append("brain")
    if name.startswith(("hands.", "common.", "sql.")):
        roles.append("hands")
    return roles
