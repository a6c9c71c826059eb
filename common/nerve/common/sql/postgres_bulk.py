"""One statement for many executions of it: the arguments travel as arrays, a row of which is one of them.

A batch of sixty-four units then costs one execution of a plan and not sixty-four. What a statement
returns comes back with the number of the execution that it belongs to. A shape that is not known here
is executed once per tuple of arguments, as ever.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from nerve.common.sql.law import Value
from nerve.common.sql.statement import ORDINAL, Statement

Arguments = Sequence[tuple[Value, ...]]

_ARGUMENT = re.compile(r"\$(\d+)")
_INSERT = re.compile(r"insert into (\w+) \(([^()]*)\) values \((.*?)\)( on conflict .*)?$")
_UPDATE = re.compile(r"update \w+ set (?P<set>.*?) where (?P<where>.*?)( returning .*)?$")
_DELETE = re.compile(r"delete from (\w+) where (?P<where>.*)$")
_CONFLICT = re.compile(r" on conflict \(([^()]*)\) do nothing$")


@dataclass(frozen=True, slots=True)
class Bulk:
    """`text` takes one array per argument.

    `unique`: positions of the arguments that name a row, which must differ between executions, since
    one statement changes a row once. `matched`: what comes back is the values of these arguments, and
    not an ordinal.
    """

    text: str
    unique: tuple[int, ...] = ()
    matched: tuple[int, ...] = ()
    silent: bool = False
    """It returns nothing: every execution writes its one row, or all of them fail."""

    def suits(self, arguments: Arguments) -> bool:
        if not self.unique:
            return True
        return len({tuple(each[at] for at in self.unique) for each in arguments}) == len(arguments)

    def arrays(self, arguments: Arguments) -> list[list[Value]]:
        return [list(column) for column in zip(*arguments, strict=True)]

    def rows(self, found: Sequence[Any], arguments: Arguments) -> list[list[Any]]:
        """What belongs to each execution."""
        if self.silent:
            return [[None] for _ in arguments]
        answers: list[list[Any]] = [[] for _ in arguments]
        if not self.matched:
            for row in found:
                answers[row[ORDINAL] - 1].append(row)
            return answers
        left = {tuple(row): row for row in found}
        for answer, each in zip(answers, arguments, strict=True):
            row = left.pop(tuple(each[at] for at in self.matched), None)
            if row is not None:
                answer.append(row)
        return answers


def bulk_of(statement: Statement, types: Sequence[str]) -> Bulk | None:
    """The bulk form of a statement whose arguments have these types; None: it has none."""
    return _bulk(statement.postgres, tuple(types)) if types else None


@cache
def _bulk(text: str, types: tuple[str, ...]) -> Bulk | None:
    for shape in (_insert, _update, _delete, _select):
        made = shape(text, types)
        if made is not None:
            return made
    return None


def _unnested(types: tuple[str, ...]) -> str:
    arrays = ", ".join(f"${number}::{name}[]" for number, name in enumerate(types, 1))
    names = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
    return f"unnest({arrays}) with ordinality as u ({names}, {ORDINAL})"


def _named(text: str) -> str:
    return _ARGUMENT.sub(r"u.p\1", text)


def _insert(text: str, types: tuple[str, ...]) -> Bulk | None:
    found = _INSERT.match(text)
    if found is None or " do update" in text:
        return None
    table, columns, values, conflict = found.groups()
    select = f"insert into {table} ({columns}) select {_named(values)} from {_unnested(types)}"
    if conflict is None:
        return Bulk(select, silent=True)
    target = _CONFLICT.match(conflict)
    if target is None:
        return None
    names = [each.strip() for each in columns.split(",")]
    given = dict(zip(names, (each.strip() for each in values.split(",")), strict=False))
    keys = [each.strip() for each in target.group(1).split(",")]
    at = [_ARGUMENT.fullmatch(given[key]) for key in keys]
    if any(each is None for each in at):
        return None
    matched = tuple(int(each.group(1)) - 1 for each in at if each is not None)
    return Bulk(f"{select}{conflict} returning {', '.join(keys)}", matched=matched)


def _update(text: str, types: tuple[str, ...]) -> Bulk | None:
    found = _UPDATE.match(text)
    if found is None:
        return None
    unique = _key(found.group("where"))
    if not unique:
        return None
    head, returning = text, ""
    if found.group(3) is not None:
        head, returning = text[: found.start(3)], f"{found.group(3)},"
    first, _, where = head.partition(" where ")
    if first.count("(") != first.count(")"):
        return None
    return Bulk(
        f"{_named(first)} from {_unnested(types)} where {_named(where)}"
        f"{returning or ' returning'} u.{ORDINAL}",
        unique=unique,
    )


def _delete(text: str, types: tuple[str, ...]) -> Bulk | None:
    found = _DELETE.match(text)
    if found is None or " returning " in text:
        return None
    where = _named(found.group("where"))
    return Bulk(
        f"delete from {found.group(1)} using {_unnested(types)} where {where} returning u.{ORDINAL}"
    )


def _select(text: str, types: tuple[str, ...]) -> Bulk | None:
    if not text.startswith("select "):
        return None
    return Bulk(
        f"select x.*, u.{ORDINAL} from {_unnested(types)} cross join lateral ({_named(text)}) as x"
    )


def _key(where: str) -> tuple[int, ...]:
    """Positions of the arguments that `id = ` or another key column is compared with."""
    named = dict(re.findall(r"(?:^| and )(\w+) = \$(\d+)(?= |$)", where))
    for keys in (("id",), ("execution", "sequence"), ("execution",), ("key",)):
        if all(key in named for key in keys):
            return tuple(int(named[key]) - 1 for key in keys)
    return ()
