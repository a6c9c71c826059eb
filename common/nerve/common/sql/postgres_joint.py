"""Writes that nobody waits for, of several tables in one statement: one round trip for all of them.

What goes out with the commit returns nothing and reads nothing but its own rows, so that its order
matters only within a table: a table occurs once in a statement, and what comes later for it is
written by the next one. Foreign keys are checked at the end of a statement, for all of its parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from nerve.common.sql.law import Value
from nerve.common.sql.postgres_bulk import Bulk
from nerve.common.sql.statement import Statement

Arguments = Sequence[tuple[Value, ...]]

_TABLE = re.compile(r"(?:insert into|update|delete from) (\w+)")
_ARGUMENT = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Write:
    """One statement with its tuples of arguments; without `bulk` it cannot be part of another."""

    statement: Statement
    arguments: Arguments
    bulk: Bulk | None

    @property
    def text(self) -> str:
        if len(self.arguments) == 1:
            return self.statement.postgres
        assert self.bulk is not None
        return self.bulk.text

    @property
    def values(self) -> Sequence[object]:
        if len(self.arguments) == 1:
            return self.arguments[0]
        assert self.bulk is not None
        return self.bulk.arrays(self.arguments)


def joinable(statement: Statement) -> bool:
    """Whether it writes one table and looks at no other."""
    return _table(statement.postgres) is not None


def rounds(writes: Sequence[Write]) -> list[list[Write]]:
    """Which go together, in the order of the rounds; within one, always in the same order."""
    made: list[list[Write]] = []
    first, last = 0, dict[str, int]()
    for write in writes:
        table = _table(write.statement.postgres)
        if write.bulk is None or table is None:
            made.append([write])
            first, last = len(made), {}
            continue
        at = last[table] + 1 if table in last else first
        if at == len(made):
            made.append([])
        made[at].append(write)
        last[table] = at
    return [sorted(each, key=lambda write: write.statement.text) for each in made]


@cache
def joint(texts: tuple[str, ...]) -> str:
    """The one statement that does what these do, its arguments theirs in a row."""
    if len(texts) == 1:
        return texts[0]
    parts: list[str] = []
    count = 0
    for number, text in enumerate(texts):
        shift = count
        found = [int(each) for each in _ARGUMENT.findall(text)]
        parts.append(f"w{number} as ({_shifted(text, shift)})")
        count += max(found, default=0)
    return f"with {', '.join(parts)} select 1"


def _shifted(text: str, by: int) -> str:
    return _ARGUMENT.sub(lambda found: f"${int(found.group(1)) + by}", text)


@cache
def _table(text: str) -> str | None:
    found = _TABLE.match(text)
    return None if found is None or re.search(r"\bselect\b", text) else found.group(1)
