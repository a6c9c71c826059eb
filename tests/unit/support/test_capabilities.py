"""The claims plugin: what a run records, what a partial run keeps, what a report calls shown."""

import json
from pathlib import Path

import pytest

from support.capabilities import Clause, Entry, clause, numbered, render

pytest_plugins = ("pytester",)

TWO_CLAIMS = """
    import pytest

    @pytest.mark.capability("A1.1")
    def test_shown():
        pass

    @pytest.mark.capability("A1.2")
    @pytest.mark.law(4)
    def test_broken():
        assert False

    def test_without_claim():
        pass
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    kinds = ("capability", "report", "rule", "law")
    markers = "\n".join(f"    {kind}(id): a claim" for kind in kinds)
    pytester.makeini(f"[pytest]\ntestpaths = .\nmarkers =\n{markers}\n")
    pytester.makepyfile(test_one=TWO_CLAIMS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> dict[str, Entry]:
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "xdist", "asyncio")]
    project.runpytest_inprocess("-psupport.capabilities", *without, *arguments)
    record: dict[str, Entry] = json.loads((project.path / "build/claims.json").read_text())
    return record


def test_a_full_run_records_each_claim_with_its_outcome(project: pytest.Pytester) -> None:
    expected = {
        "test_one.py::test_shown": {"outcome": "passed", "claims": ["capability:A1.1"]},
        "test_one.py::test_broken": {"outcome": "failed", "claims": ["capability:A1.2", "law:4"]},
    }
    assert run(project) == expected


def test_a_partial_run_keeps_what_the_other_tests_showed(project: pytest.Pytester) -> None:
    run(project)
    project.makepyfile(test_two="def test_nothing(): pass")
    assert len(run(project, "test_two.py", "-k", "nothing")) == 2


def test_a_full_run_forgets_tests_that_are_gone(project: pytest.Pytester) -> None:
    run(project)
    project.makepyfile(test_one="def test_nothing(): pass")
    assert run(project) == {}


def test_a_claim_can_be_selected(project: pytest.Pytester) -> None:
    assert list(run(project, "--claim", "law:4")) == ["test_one.py::test_broken"]


def test_only_numbered_lines_are_clauses(tmp_path: Path) -> None:
    document = tmp_path / "promises.md"
    document.write_text("# Title\n- **A1.1** First.\n- not numbered\n- **U01** Second.\n")
    assert numbered(document) == {"A1.1": "First.", "U01": "Second."}


def test_a_clause_with_a_failing_or_skipped_test_is_not_shown() -> None:
    record: dict[str, Entry] = {
        "t.py::a": {"outcome": "passed", "claims": ["capability:A1.1"]},
        "t.py::b": {"outcome": "skipped", "claims": ["capability:A1.1"]},
    }
    found = clause("capability:A1.1", "First.", record)
    assert (found.passed, found.others) == (("t.py::a",), ("t.py::b (skipped)",))
    assert not found.holds


def test_a_row_holds_when_each_of_its_clauses_does() -> None:
    shown = [
        Clause(id="A1.1", text="First.", passed=("t.py::a",), others=()),
        Clause(id="A1.2", text="Second.", passed=("t.py::b",), others=()),
        Clause(id="A2.1", text="Third.", passed=("t.py::a",), others=()),
        Clause(id="A2.2", text="Fourth.", passed=(), others=()),
    ]
    assert list(render(shown))[-2:] == ["clauses shown: 3 of 4", "rows that hold: 1 of 2: A1"]
