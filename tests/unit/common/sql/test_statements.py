"""Every statement of both rooms is understood by its dialects and prepares against a fresh ledger."""

import importlib
import pkgutil
import re
import sqlite3
from collections.abc import Iterator
from types import ModuleType

import pytest

import nerve.brain
import nerve.common
import nerve.hands
from nerve.brain.ledger.schema import SCHEMA as BRAIN
from nerve.common.sql import Schema, Statement, sql
from nerve.common.sql.migrate import ddl
from nerve.hands.ledger.schema import HANDS_SCHEMA as HANDS


def statements(package: ModuleType, only: str) -> Iterator[tuple[str, Statement]]:
    """Module-level statements below a package, each under the module that wrote it."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if re.search("migrations|postgres", found.name) or not re.search(only, found.name):
            continue
        module = importlib.import_module(found.name)
        for attribute, value in vars(module).items():
            if isinstance(value, Statement):
                yield f"{found.name}:{attribute}", value


COMMON = dict(statements(nerve.common, r"common\.(lease|outbox|inbox|sql)"))
OURS = {
    "brain": dict(statements(nerve.brain, "")) | COMMON,
    "hands": dict(statements(nerve.hands, "")) | COMMON,
}
EACH = sorted({(room, name) for room, found in OURS.items() for name in found})


def fresh(schema: Schema) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in ddl(schema):
        connection.execute(statement)
    return connection


@pytest.fixture(scope="module")
def ledgers() -> Iterator[dict[str, sqlite3.Connection]]:
    made = {"brain": fresh(BRAIN), "hands": fresh(HANDS)}
    yield made
    for each in made.values():
        each.close()


def test_there_are_statements_in_every_room() -> None:
    assert min(len(found) for found in OURS.values()) > 20


@pytest.mark.parametrize(("room", "name"), EACH)
def test_a_statement_prepares_against_the_fresh_schema(
    ledgers: dict[str, sqlite3.Connection], room: str, name: str
) -> None:
    statement = OURS[room][name]
    ledgers[room].execute(f"explain {statement.sqlite}", [None] * len(statement.names))


@pytest.mark.parametrize(("room", "name"), EACH)
def test_a_statement_numbers_its_arguments_for_both_dialects(room: str, name: str) -> None:
    statement = OURS[room][name]
    assert not re.search(r"(?<!:):[a-z_]", statement.postgres)
    for text, mark in ((statement.postgres, r"\$"), (statement.sqlite, r"\?")):
        numbers = {int(n) for n in re.findall(rf"{mark}(\d+)", text)}
        assert numbers == set(range(1, len(statement.names) + 1))


# What SQLite takes and PostgreSQL does not, or means otherwise.
FOREIGN = (
    r"\b(insert or |replace into|ifnull|glob|rowid|autoincrement|strftime|datetime\(|is not \d)"
)


@pytest.mark.parametrize(("room", "name"), EACH)
def test_a_statement_keeps_to_what_both_dialects_have(room: str, name: str) -> None:
    text = OURS[room][name].text.lower()
    assert not re.search(FOREIGN, text)
    assert '"' not in text
    # An UPDATE or DELETE with a limit of its own, and integers as truth values, are SQLite's alone.
    assert not re.search(r"^(update|delete) (?!.*\bselect\b).*\blimit\b", text)
    assert not re.search(r"\bwhere (\w+\.)?\w+ (and|or|order|limit)\b", text)


def test_a_name_may_occur_twice_and_is_one_argument() -> None:
    statement = sql("select :a, :b, :a where x = 'y' and z = :b_2")
    assert statement.names == ("a", "b", "b_2")
    assert statement.postgres == "select $1, $2, $1 where x = 'y' and z = $3"
    assert statement.arguments({"b": 2, "a": 1, "b_2": 3, "unused": 4}) == (1, 2, 3)


def test_a_cast_is_no_parameter() -> None:
    assert sql("select x::bigint from t where a = :a").postgres == (
        "select x::bigint from t where a = $1"
    )
