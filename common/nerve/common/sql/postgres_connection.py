"""One server connection that executes for laws in step."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from nerve.common.sql.law import Value
from nerve.common.sql.lockstep import Kind
from nerve.common.sql.statement import ORDINAL, Statement

Raw = "asyncpg.Connection[Any]"


class Connection:
    """`raw` and the state of the transaction that is open on it."""

    def __init__(self, raw: "asyncpg.Connection[Any]") -> None:
        self.raw = raw

    async def execute(
        self, kind: Kind, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Sequence[Any]:
        if kind is Kind.MANY:
            await self.raw.executemany(statement.postgres, arguments)
            return ()
        if len(arguments) == 1:
            return [await self._alone(kind, statement, arguments[0])]
        numbered = [(*each, number) for number, each in enumerate(arguments)]
        rows = await self.raw.fetchmany(statement.counted, numbered)
        answers: list[list[Any]] = [[] for _ in arguments]
        for row in rows:
            answers[row[ORDINAL]].append(row)
        return answers if kind is Kind.ROWS else [len(each) for each in answers]

    async def _alone(self, kind: Kind, statement: Statement, arguments: tuple[Value, ...]) -> Any:
        if kind is Kind.ROWS:
            return await self.raw.fetch(statement.postgres, *arguments)
        status = await self.raw.execute(statement.postgres, *arguments)
        return int(status.rpartition(" ")[2])


class Cleaned:
    """As a connection, without the NUL characters that PostgreSQL cannot keep in text."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def execute(
        self, kind: Kind, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Sequence[Any]:
        cleaned = [tuple(map(_clean, each)) for each in arguments]
        return await self._connection.execute(kind, statement, cleaned)


def _clean(value: Value) -> Value:
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
