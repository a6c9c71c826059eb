"""A call of a port without a fault point before and after it fails here, by its place in the source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.points import ELSEWHERE, load_all, matches
from nerve.common import faults

ROOT = Path(__file__).parents[2]
ROOMS = ("common/nerve/common", "brain/nerve/brain", "hands/nerve/hands")

SERVERS = ("rabbitmq", "rocketmq", "s3")
"""Adapters of brokers and object stores that need a server; see ELSEWHERE in `chaos.points`."""

WATCHED = frozenset({"publish", "_publish", "ack", "link", "COMMIT", "drop_lock", "invoke"})
"""Names under which commits, publishes, acknowledgements, object writes, lock releases and tools are called."""

COVERED = {
    "common/sql/committer.py Committer._commit": "_write and _together have the points",
    "common/sql/migrate.py": "a migration is one transaction of an offline tool",
    "common/broker/sqlite_writer.py QueueWriter._attempt": "before and after stand around it",
    "common/broker/sqlite_file.py": "making an empty queue file: nothing is in it",
    "common/broker/http_hub.py": "the queue file behind the hub has the points",
    "common/broker/http_session.py": "the queue file behind the hub has the points",
    "common/broker/unruly.py": "for tests: the broker within has the points",
    "common/lease.py Hosts.close": "drop_lock has the points",
    "common/lease.py Hosts.register": "drop_lock has the points",
    "common/place.py _write_new": "the marker of a new folder: there is nothing to lose yet",
    "common/sql/survey.py raise_epoch": "an operator's command, one transaction",
    "brain/tools/remote.py RemoteExecutor.": "_publish has the points",
    "hands/publisher.py": "Relay and the broker have the points",
    "hands/report.py Answers._drive": "the broker has the points; a lost answer is asked for again",
    "hands/assembly.py": "drop_lock has the points",
    "brain/schedule/greeting.py": "the broker has the points; a lost greeting is an unanswered one",
    "brain/testing/": "a rehearsal in memory for users' tests",
}
"""Places whose points stand one call further in or out, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    place: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line} calls {self.name}"


def test_every_call_of_a_port_stands_between_two_points() -> None:
    bare = [str(site) for site in uncovered()]
    assert bare == [], "give them points before and after, or say in COVERED where those stand"


def test_no_exception_is_older_than_its_place() -> None:
    places = {site.place for site in sites()}
    assert [each for each in COVERED if not any(place.startswith(each) for place in places)] == []


def test_every_law_has_its_points() -> None:
    load_all()
    before = {name for name in faults.names() if name.endswith(".before_commit")}
    assert {name.replace(".before_", ".after_") for name in before} <= set(faults.names())
    assert len(before) > 20


@pytest.mark.parametrize("room", ["brain", "common", "hands", "sql"])
def test_a_point_that_is_registered_is_called(room: str) -> None:
    """By its name, or as the two points of a law."""
    load_all()
    text = "\n".join(path.read_text() for path in sources())
    laws = {name.rpartition(".")[0] for name in faults.names() if name.endswith("_commit")}
    for name in faults.names(room):
        if matches(name, ELSEWHERE):
            continue
        called = f'point("{name}")' in text
        of_law = name.rpartition(".")[0] in laws or "_commit" in name
        assert called or of_law, f"{name} is registered and never reached"


def uncovered() -> Iterator[Site]:
    for site, between in _sites():
        if not between and not any(site.place.startswith(each) for each in COVERED):
            yield site


def sites() -> Iterator[Site]:
    for site, _ in _sites():
        yield site


def sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "migrations" not in path.parts and not path.stem.startswith(SERVERS):
                yield path


def _sites() -> Iterator[tuple[Site, bool]]:
    for path in sources():
        short = "/".join(path.relative_to(ROOT).parts[2:])
        for name, function in _functions(ast.parse(path.read_text())):
            points = [call.lineno for call in _calls(function) if _is_point(call)]
            for call in _calls(function):
                watched = _watched(call)
                if watched is not None:
                    between = any(line < call.lineno for line in points) and any(
                        line > call.lineno for line in points
                    )
                    yield Site(place=f"{short} {name}", line=call.lineno, name=watched), between


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}", inner
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node


def _calls(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield node


def _is_point(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name in ("faults.point", "faults.apoint", "_reach")


def _watched(call: ast.Call) -> str | None:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in WATCHED:
        return name
    if name in ("execute", "run_in_executor"):
        text = " ".join(ast.unparse(argument) for argument in call.args)
        if "COMMIT" in text:
            return "COMMIT"
    return None
