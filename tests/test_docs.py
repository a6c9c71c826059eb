"""What the documents name exists: functions, tests with their marks, columns of the ledgers, diagrams."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from nerve.brain.ledger.tables import metadata as brain_tables
from nerve.hands.ledger.tables import metadata as hands_tables
from sabotage.sabotages import SABOTAGES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CODE_NAME = re.compile(r"`([a-z_/]+\.py):([A-Za-z_.]+)`")
TEST_NAME = re.compile(r"`(tests/[a-z0-9_/]+\.py)::([a-z0-9_]+)`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
DOCUMENTS = sorted(DOCS.rglob("*.md"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def find(path: Path, name: str) -> ast.AST | None:
    """A class, function, or method `Class.method` at the top level of a module."""
    body: list[ast.stmt] = tree(path).body
    node: ast.stmt | None = None
    for step in name.split("."):
        definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found = [each for each in body if isinstance(each, definitions) and each.name == step]
        if not found:
            return None
        node = found[0]
        body = node.body
    return node


def sections() -> Iterator[tuple[int, str]]:
    """Each law with its text."""
    for part in (DOCS / "laws.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        yield int(part.split(".")[0]), part


def laws_of(path: Path, name: str) -> set[int]:
    """The laws that a test is marked for, by itself or by its module."""
    node = find(path, name)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef), f"{path}::{name}"
    module = [each for each in tree(path).body if isinstance(each, ast.Assign)]
    texts = [ast.unparse(each) for each in [*node.decorator_list, *module]]
    marks = re.findall(r"pytest\.mark\.law\(([\d, ]+)\)", " ".join(texts))
    return {int(number) for mark in marks for number in mark.split(",")}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_function_and_test_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = CODE_NAME.findall(text) + TEST_NAME.findall(text)
    absent = [
        f"{path}:{name}"
        for path, name in named
        if not (ROOT / path).is_file() or find(ROOT / path, name) is None
    ]
    assert absent == []


def test_every_law_says_where_it_is_held_and_which_marked_tests_show_it() -> None:
    found = dict(sections())
    assert sorted(found) == list(range(1, 13))
    for law, text in found.items():
        assert CODE_NAME.search(text), law
        tests = TEST_NAME.findall(text)
        assert tests, law
        unmarked = [name for path, name in tests if law not in laws_of(ROOT / path, name)]
        assert unmarked == [], law


def test_every_law_names_its_sabotages() -> None:
    for law, text in sections():
        (line,) = re.findall(r"^Broken on purpose by (.+)\.$", text, re.MULTILINE)
        wanted = {each.name for each in SABOTAGES if each.law == f"law:{law}"}
        assert set(re.findall(r"`([a-z0-9-]+)`", line)) == wanted, law


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "README.md"], ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text(encoding="utf-8"))
    broken = [
        link
        for link in links
        if "://" not in link and not (document.parent / link.strip()).exists()
    ]
    assert broken == []


def explained() -> dict[str, list[str]]:
    """Columns by `Part/table`, as the page has them."""
    found: dict[str, list[str]] = {}
    part = table = ""
    for line in (DOCS / "ledgers.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            part = line[3:].lower()
        elif line.startswith("### "):
            table = line[4:]
        elif row := re.match(r"\| `([a-z_]+)` \|", line):
            found.setdefault(f"{part}/{table}", []).append(row[1])
    return found


@pytest.mark.parametrize("room", ["brain", "hands"])
def test_every_column_of_a_ledger_is_explained(room: str) -> None:
    metadata = brain_tables() if room == "brain" else hands_tables()
    page = explained()
    shared = {each.partition("/")[2] for each in page if each.startswith("both/")}
    wanted = {
        f"{'both' if table.name in shared else room}/{table.name}": sorted(table.columns.keys())
        for table in metadata.sorted_tables
    }
    present = {key: sorted(page[key]) for key in page if key.split("/")[0] in ("both", room)}
    assert present == wanted


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"run python docs/generate.py\n{done.stderr}"
