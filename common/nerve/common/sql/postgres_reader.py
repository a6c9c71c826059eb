"""Reads of a PostgreSQL ledger on a connection of their own; those that wait meanwhile go together.

One statement is a snapshot by itself, several need a transaction; which queries have several is
learnt. A lost connection is replaced and the queries run again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import CodeType
from typing import Any, TypeVar

from nerve.common.lifecycle import Backoff
from nerve.common.sql import lockstep
from nerve.common.sql.law import Law, Row, Tx, Value
from nerve.common.sql.lockstep import LockstepTx, Step
from nerve.common.sql.postgres_connection import Connection
from nerve.common.sql.postgres_errors import DRIVER_ERRORS, Meaning, meaning, unavailable
from nerve.common.sql.postgres_source import Source, is_gone
from nerve.common.sql.statement import Statement
from nerve.protocol.errors import NerveError

V = TypeVar("V")
Query = Callable[[Tx], Awaitable[Any]]

BATCH_QUERIES_MAX = 64
PATIENCE_SECONDS = 10.0


class _Several(Exception):
    """A query turned out to have a second statement: it needs a snapshot."""


async def _nothing(tx: Tx, unit: None) -> None:
    return None


_NOTHING: Law[None, None] = Law("read", "", "", _nothing, lambda unit: ())


class _SingleTx(LockstepTx):
    """Answers one statement."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        super().__init__(Step(_NOTHING, None), {})
        self._asked = False

    async def all(self, statement: Statement, /, **parameters: Value) -> Sequence[Row]:
        if self._asked:
            raise _Several
        self._asked = True
        return await super().all(statement, **parameters)

    async def lock(self, statement: Statement, /, **parameters: Value) -> None:
        raise _Several

    async def gather(self, works: Sequence[Any], /) -> list[Any]:
        for work in works:
            work.close()
        raise _Several


@dataclass(slots=True, eq=False)
class _Asked:
    query: Query
    future: asyncio.Future[Any]

    @property
    def code(self) -> CodeType | None:
        return getattr(self.query, "__code__", None)


class Reader:
    """`waiting`: queries that have no answer yet."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._connection: Connection | None = None
        self._several: set[CodeType] = set()
        self._backoff = Backoff(first_seconds=0.02, most_seconds=1.0)
        self._asked: list[_Asked] = []
        self._task: asyncio.Task[None] | None = None
        self._refusal: NerveError | None = None
        self.waiting = 0

    async def read(self, query: Callable[[Tx], Awaitable[V]]) -> V:
        if self._refusal is not None:
            raise self._refusal
        loop = asyncio.get_running_loop()
        future: asyncio.Future[V] = loop.create_future()
        self._asked.append(_Asked(query, future))
        self.waiting += 1
        if self._task is None:
            self._task = loop.create_task(self._run(), name="ledger-reader")
        try:
            return await future
        finally:
            self.waiting -= 1

    async def close(self, refusal: NerveError) -> None:
        """Answer what was asked, then give the connection back. What is asked from now on is refused:
        it would take a connection that nobody gives back."""
        self._refusal = refusal
        while self._task is not None:
            await asyncio.wait([self._task])
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._source.give_back(connection.raw)

    async def abandon(self) -> None:
        """Let go of everything at once; what was asked is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._drop()

    async def _run(self) -> None:
        try:
            while self._asked:
                batch = self._asked[:BATCH_QUERIES_MAX]
                del self._asked[:BATCH_QUERIES_MAX]
                await self._settle(batch)
        finally:
            self._task = None

    async def _settle(self, batch: list[_Asked]) -> None:
        try:
            await self._patiently(batch)
        except Exception as error:
            for each in _open(batch):
                each.future.set_exception(error)
        except BaseException:
            for each in _open(batch):
                each.future.cancel()
            raise

    async def _patiently(self, batch: Sequence[_Asked]) -> None:
        began = perf_counter()
        failures = 0
        while asked := _open(batch):
            try:
                return await self._once(asked)
            except DRIVER_ERRORS as error:
                await self._drop()
                if meaning(error) is Meaning.REFUSED and len(asked) > 1:
                    # One of them: each has to find out for itself.
                    for each in asked:
                        await self._settle([each])
                    return None
                waited = perf_counter() - began
                if waited > PATIENCE_SECONDS or meaning(error) is Meaning.REFUSED:
                    raise unavailable(error) from error
            failures += 1
            await asyncio.sleep(self._backoff.after(failures))

    async def _once(self, asked: Sequence[_Asked]) -> None:
        connection = await self._connected()
        await self._singles([each for each in asked if each.code not in self._several], connection)
        left = _open(asked)
        if left:
            async with connection.raw.transaction(isolation="repeatable_read", readonly=True):
                steps = await _asking([each.query for each in left], connection)
            for each, step in zip(left, steps, strict=True):
                _resolve(each, step)

    async def _singles(self, asked: Sequence[_Asked], connection: Connection) -> None:
        """Those that have one statement are answered, of the others this is known from now on."""
        answered = await _asking([_single(each.query) for each in asked], connection)
        for each, step in zip(asked, answered, strict=True):
            if not isinstance(step.error, _Several):
                _resolve(each, step)
            elif each.code is not None:
                self._several.add(each.code)

    async def _connected(self) -> Connection:
        if self._connection is None or is_gone(self._connection.raw):
            await self._drop()
            self._connection = Connection(await self._source.lease())
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._source.drop(connection.raw)


def _open(asked: Sequence[_Asked]) -> list[_Asked]:
    """Those that somebody still waits for."""
    return [each for each in asked if not each.future.done()]


async def _asking(queries: Sequence[Query], connection: Connection) -> Sequence[Step]:
    """All of them in step; each has its answer or its error."""
    steps = [Step(_law(query), None) for query in queries]
    await lockstep.run(steps, connection)
    return steps


def _law(query: Query) -> Law[None, Any]:
    async def apply(tx: Tx, unit: None) -> Any:
        return await query(tx)

    return Law("read", "", "", apply, lambda unit: ())


def _single(query: Query) -> Query:
    """The query, which raises where it asks for more than one statement."""

    async def asked_once(tx: Tx) -> Any:
        return await query(_SingleTx())

    return asked_once


def _resolve(each: _Asked, step: Step) -> None:
    if each.future.done():
        return
    if step.error is not None:
        each.future.set_exception(step.error)
    else:
        each.future.set_result(step.verdict)
