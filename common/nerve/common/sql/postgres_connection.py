"""One server connection that executes for laws in step."""

from collections.abc import Sequence
from typing import Any

import asyncpg

from nerve.common.sql.law import Value
from nerve.common.sql.lockstep import Kind
from nerve.common.sql.position import NEXT_POSITION, SEVERAL_POSITIONS
from nerve.common.sql.postgres_bulk import Bulk, bulk_of
from nerve.common.sql.postgres_joint import Write, joinable, joint, rounds
from nerve.common.sql.statement import ORDINAL, Statement

_types: dict[str, list[str]] = {}
"""The types of a statement's arguments, which depend on the schema of this build alone."""


class Connection:
    """Executes one statement for many units at once."""

    def __init__(self, raw: "asyncpg.Connection[Any]") -> None:
        self.raw = raw

    async def execute(
        self, kind: Kind, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Sequence[Any]:
        if len(arguments) == 1:
            return [await self._alone(kind, statement, arguments[0])]
        if statement is NEXT_POSITION:
            last: int = await self.raw.fetchval(SEVERAL_POSITIONS, len(arguments))
            return [[(last - after,)] for after in reversed(range(len(arguments)))]
        bulk = await self._bulk(statement)
        if bulk is None or not bulk.suits(arguments):
            return await self._each(kind, statement, arguments)
        arrays = bulk.arrays(arguments)
        if kind is Kind.MANY:
            await self.raw.execute(bulk.text, *arrays)
            return ()
        rows = bulk.rows(await self.raw.fetch(bulk.text, *arrays), arguments)
        return rows if kind is Kind.ROWS else [len(each) for each in rows]

    async def write(self, work: Sequence[tuple[Statement, Sequence[tuple[Value, ...]]]]) -> None:
        writes = [
            Write(statement, arguments, await self._joinable(statement, arguments))
            for statement, arguments in work
        ]
        for group in rounds(writes):
            if len(group) == 1:
                await self.execute(Kind.MANY, group[0].statement, group[0].arguments)
            else:
                values = [value for each in group for value in each.values]
                await self.raw.execute(joint(tuple(each.text for each in group)), *values)

    async def _joinable(
        self, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Bulk | None:
        bulk = await self._bulk(statement) if joinable(statement) else None
        return bulk if bulk is not None and bulk.suits(arguments) else None

    async def _bulk(self, statement: Statement) -> Bulk | None:
        types = _types.get(statement.postgres)
        if types is None:
            prepared = await self.raw.prepare(statement.postgres)
            types = [each.name for each in prepared.get_parameters()]
            _types[statement.postgres] = types
        return bulk_of(statement, types)

    async def _each(
        self, kind: Kind, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Sequence[Any]:
        if kind is Kind.MANY:
            await self.raw.executemany(statement.postgres, arguments)
            return ()
        numbered = [(*each, number) for number, each in enumerate(arguments)]
        answers: list[list[Any]] = [[] for _ in arguments]
        for row in await self.raw.fetchmany(statement.counted, numbered):
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
        return await self._connection.execute(kind, statement, _cleaned(arguments))

    async def write(self, work: Sequence[tuple[Statement, Sequence[tuple[Value, ...]]]]) -> None:
        await self._connection.write(
            [(statement, _cleaned(arguments)) for statement, arguments in work]
        )


def _cleaned(arguments: Sequence[tuple[Value, ...]]) -> list[tuple[Value, ...]]:
    return [tuple(map(_clean, each)) for each in arguments]


def _clean(value: Value) -> Value:
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
