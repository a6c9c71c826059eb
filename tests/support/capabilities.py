"""Which test shows which promise: a pytest plugin that records claims, and a report that prints them.

A claim is one of the markers `capability`, `report`, `rule` and `law`. A full test run replaces the
record in `build/claims.json`, a partial run brings its own part of it up to date.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

import pytest

KINDS = ("capability", "report", "rule", "law")
RECORD = Path("build/claims.json")
DOCUMENTS = {
    "capability": Path("docs/capabilities.md"),
    "report": Path("docs/user-reports.md"),
    "rule": Path("docs/failures.md"),
}
CLAUSE = re.compile(r"^- \*\*(?P<id>[A-Z]?\d+(?:\.\d+)?)\*\*\s+(?P<text>.+)$")


class Entry(TypedDict):
    """What one test claims, and how it ended the last time it ran."""

    outcome: str
    claims: list[str]


def claims_of(item: pytest.Item) -> list[str]:
    """Every claim on a test, written as `kind:id`."""
    return sorted(
        {
            f"{mark.name}:{claim}"
            for mark in item.iter_markers()
            if mark.name in KINDS
            for claim in mark.args
        }
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--claim",
        action="append",
        default=[],
        metavar="KIND:ID",
        help="run only tests that show this claim, for instance law:4 or capability:A1.2 (may repeat)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config), "nerve-claims")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(cast(list[str], config.getoption("--claim")))
    for item in items:
        item.user_properties.extend(("claim", claim) for claim in claims_of(item))
    if wanted:
        dropped = [item for item in items if wanted.isdisjoint(claims_of(item))]
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not wanted.isdisjoint(claims_of(item))]


class Recorder:
    """Keeps the outcome of every test with a claim and writes the record when the run ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._path = config.rootpath / RECORD
        self._root = config.rootpath
        self._complete = is_complete(config)
        self._entries: dict[str, Entry] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        claims = [str(value) for name, value in report.user_properties if name == "claim"]
        if not claims:
            return
        entry = self._entries.setdefault(report.nodeid, {"outcome": "passed", "claims": claims})
        if report.outcome != "passed" and entry["outcome"] != "failed":
            entry["outcome"] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        complete = self._complete and not (session.shouldfail or session.shouldstop)
        if session.config.option.collectonly or not (self._entries or complete):
            return
        kept = {} if complete else surviving(read_record(self._path), self._root)
        write_record(self._path, kept | self._entries)


def is_complete(config: pytest.Config) -> bool:
    """Whether this run selects every test, so that its record replaces the former one."""
    narrowed = any(
        config.getoption(name, None) for name in ("keyword", "markexpr", "--claim", "lf")
    )
    return config.args_source is not pytest.Config.ArgsSource.ARGS and not narrowed


def surviving(record: Mapping[str, Entry], root: Path) -> dict[str, Entry]:
    """The entries whose test file still exists."""
    return {test: entry for test, entry in record.items() if (root / test.split("::")[0]).is_file()}


def read_record(path: Path) -> dict[str, Entry]:
    if not path.is_file():
        return {}
    return cast(dict[str, Entry], json.loads(path.read_text(encoding="utf-8")))


def write_record(path: Path, record: Mapping[str, Entry]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")  # two runs may end at the same moment
    fresh.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    fresh.replace(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One numbered promise of a document, with the tests that claim it."""

    id: str
    text: str
    passed: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def row(self) -> str:
        return self.id.split(".")[0]

    @property
    def holds(self) -> bool:
        return bool(self.passed) and not self.others


def numbered(document: Path) -> dict[str, str]:
    """Clause id to text, in the document's order."""
    lines = document.read_text(encoding="utf-8").splitlines()
    found = [match for match in map(CLAUSE.match, lines) if match]
    return {match["id"]: match["text"] for match in found}


def clauses(document: Path, kind: str, record: Mapping[str, Entry]) -> list[Clause]:
    """The document's clauses, joined with what the record knows about each of them."""
    return [clause(f"{kind}:{id}", text, record) for id, text in numbered(document).items()]


def clause(claim: str, text: str, record: Mapping[str, Entry]) -> Clause:
    shown = {test: entry["outcome"] for test, entry in record.items() if claim in entry["claims"]}
    return Clause(
        id=claim.split(":")[1],
        text=text,
        passed=tuple(test for test, outcome in shown.items() if outcome == "passed"),
        others=tuple(
            f"{test} ({outcome})" for test, outcome in shown.items() if outcome != "passed"
        ),
    )


def render(found: Sequence[Clause]) -> Iterable[str]:
    """The report: every clause with its tests, then which rows hold."""
    for each in found:
        yield f"[{'x' if each.holds else ' '}] {each.id:<6} {each.text}"
        yield from (f"           {test}" for test in (*each.passed, *each.others))
    rows = dict.fromkeys(each.row for each in found)
    whole = [row for row in rows if all(each.holds for each in found if each.row == row)]
    yield ""
    yield f"clauses shown: {sum(each.holds for each in found)} of {len(found)}"
    yield f"rows that hold: {len(whole)} of {len(rows)}: {' '.join(whole) or 'none'}"


def main(kind: str) -> int:
    """Print the report for one kind of claim, from the record of the last test run."""
    record = read_record(RECORD)
    if not record:
        print(f"no record of a test run in {RECORD}: run `make test` first", file=sys.stderr)
        return 1
    print("\n".join(render(clauses(DOCUMENTS[kind], kind, record))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
