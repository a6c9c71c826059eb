"""Which writes go together in one statement, and that they keep their order within a table."""

import pytest

from nerve.common.sql import sql
from nerve.common.sql.statement import Statement

bulk_of = pytest.importorskip("nerve.common.sql.postgres_bulk").bulk_of
together = pytest.importorskip("nerve.common.sql.postgres_joint")

PUT = sql("insert into item (id, body) values (:id, :body)")
CHANGE = sql("update item set body = :body where id = :id")
LOG = sql("insert into log (line) values (:line)")
PRUNE = sql("delete from log where line = :line and exists (select 1 from item)")


def write(statement: Statement, *arguments: tuple[str, ...]) -> object:
    types = ["text"] * len(statement.names)
    bulk = bulk_of(statement, types) if together.joinable(statement) else None
    return together.Write(statement, arguments, bulk)


def test_a_table_occurs_once_in_a_round_and_later_writes_of_it_follow() -> None:
    made = together.rounds([write(PUT, ("1", "a")), write(CHANGE, ("b", "1")), write(LOG, ("x",))])
    assert [[each.statement for each in group] for group in made] == [[PUT, LOG], [CHANGE]]


def test_what_looks_at_another_table_stands_between_those_before_and_after_it() -> None:
    made = together.rounds(
        [write(PUT, ("1", "a")), write(PRUNE, ("x",), ("y",)), write(LOG, ("z",))]
    )
    assert [[each.statement for each in group] for group in made] == [[PUT], [PRUNE], [LOG]]


def test_arguments_of_the_parts_follow_each_other() -> None:
    one, many = write(LOG, ("x",)), write(PUT, ("1", "a"), ("2", "b"))
    (group,) = together.rounds([one, many])
    text = together.joint(tuple(each.text for each in group))
    assert [each.statement for each in group] == [PUT, LOG]
    assert "unnest($1::text[], $2::text[])" in text
    assert text.endswith("w1 as (insert into log (line) values ($3)) select 1")
    assert [value for each in group for value in each.values] == [["1", "2"], ["a", "b"], "x"]
