"""One writing connection of a PostgreSQL ledger, and the batches that it commits.

A deadlock, a serialization failure or a race repeats the batch unseen. A law that raised after it
wrote, or content that the server refuses, makes its batch run again one by one. After a connection
was lost in COMMIT the batch's number, which the batch itself wrote, is read back under a lock, which
waits for the old backend, before anything runs again.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import asyncpg

from nerve.common import faults
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.sql import lockstep
from nerve.common.sql.law import Again, Law
from nerve.common.sql.lockstep import Spoilt, Step
from nerve.common.sql.postgres_connection import Cleaned, Connection
from nerve.common.sql.postgres_errors import (
    DRIVER_ERRORS,
    WHERE,
    Meaning,
    meaning,
    refused,
    unavailable,
)
from nerve.common.sql.postgres_schema import still_there
from nerve.common.sql.postgres_source import Source, is_gone
from nerve.protocol.errors import NerveError, WrongLedger

_log = get_log("nerve.common.postgres")

PATIENCE_SECONDS = 20.0
DOUBT_SECONDS = 120.0
RACES_MAX = 5
LOOKS_MAX = 12
HELD_SECONDS = 0.01

FIRST_BATCH = "insert into writer (id, batch) values ($1, 0) on conflict (id) do nothing"
READ_BATCH = "select batch from writer where id = $1 for update"
WRITTEN = "select batch from writer where id = $1"
FORGET_WRITER = "delete from writer where id = $1"


@dataclass(slots=True, eq=False)
class Entry:
    """A unit in the queue. Without a `future` nobody waits for it."""

    law: Law[Any, Any]
    unit: Any
    keys: Sequence[str]
    future: asyncio.Future[Any] | None


class Work(Protocol):
    """Where a lane gets its batches."""

    def take(self) -> list[Entry]: ...

    def done(self, batch: Sequence[Entry]) -> None: ...

    def part(self, batch: Sequence[Entry]) -> None:
        """Queue them again, each for a batch of its own."""
        ...

    def count(self, units: int, seconds: float) -> None: ...

    def refuse(self, error: NerveError) -> NerveError:
        """Nothing more is committed by this process; returns the error."""
        ...


class Lane:
    """Takes batches while there are any; `writer` names it in the ledger."""

    def __init__(self, work: Work, source: Source, writer: str) -> None:
        self._work = work
        self._source = source
        self._writer = writer
        self._batch = 0
        self._confirmed = 0
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(first_seconds=0.02, most_seconds=1.0)
        self.blocked_since: float | None = None
        self.cause: Exception | None = None

    @property
    def idle(self) -> bool:
        return self._task is None

    def wake(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger-lane")

    async def open(self) -> None:
        await self._connected()

    async def rest(self) -> None:
        """Wait until it found nothing more to do."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        await self.rest()
        # Whoever still comes finds no row of this writer, and that is no restored ledger.
        self._confirmed = 0
        if self._connection is None:
            return
        try:
            await self._connection.raw.execute(FORGET_WRITER, self._writer)
        except DRIVER_ERRORS:
            return await self._drop()
        connection, self._connection = self._connection, None
        await self._source.give_back(connection.raw)

    async def abandon(self) -> None:
        """Let go of everything at once, in whatever state it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._drop()

    async def _run(self) -> None:
        try:
            while batch := self._work.take():
                try:
                    await self._settle(batch)
                finally:
                    self._work.done(batch)
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _settle(self, batch: list[Entry]) -> None:
        steps = [Step(entry.law, entry.unit) for entry in batch]
        try:
            if not await self._patiently(steps):
                for step in steps:
                    await self._alone(step)
        except _Locked:
            self._work.part(batch)
            return
        except Exception as error:
            for step in steps:
                step.error = step.error or error
        except BaseException:
            for entry in batch:
                if entry.future is not None:
                    entry.future.cancel()
            raise
        for entry, step in zip(batch, steps, strict=True):
            _resolve(entry, step)

    async def _alone(self, step: Step) -> None:
        try:
            if not await self._patiently([step]):
                assert step.error is not None
        except Exception as error:
            step.error = error

    async def _patiently(self, steps: Sequence[Step]) -> bool:
        """Commit the batch, again after what may pass. False: its units have to run one by one, or
        the only one has its `error`."""
        began = perf_counter()
        attempts = _Attempts()
        while True:
            for step in steps:
                step.again()
            try:
                await self._together(steps, clean=attempts.clean)
                if not attempts.held(steps):
                    return True
                await asyncio.sleep(HELD_SECONDS)
                continue
            except Spoilt:
                return False
            except DRIVER_ERRORS as error:
                cause: Exception = error
            finally:
                self.blocked_since = None
            await self._judge(cause, alone=len(steps) == 1)
            if not attempts.worth(cause, alone=len(steps) == 1):
                if len(steps) > 1:
                    return False
                raise refused(cause) from cause
            if perf_counter() - began > PATIENCE_SECONDS:
                raise unavailable(cause) from cause
            self._wait_for(cause, began)
            await asyncio.sleep(self._backoff.after(attempts.count))

    async def _judge(self, cause: Exception, *, alone: bool) -> None:
        if meaning(cause) is Meaning.LOST:
            await self._drop()
        if isinstance(cause, asyncpg.LockNotAvailableError) and not alone:
            raise _Locked from cause

    def _wait_for(self, cause: Exception, began: float) -> None:
        self.cause, self.blocked_since = cause, began
        _log.warning("a batch is tried again", cause=type(cause).__name__, error=cause)

    async def _together(self, steps: Sequence[Step], *, clean: bool) -> None:
        connection = await self._connected()
        began = perf_counter()
        faults.point("sql.begin")
        try:
            await connection.raw.execute("begin")
            await lockstep.run(steps, Cleaned(connection) if clean else connection)
        except BaseException:
            await self._roll_back(connection)
            raise
        if any(step.wrote for step in steps):
            await self._commit(connection)
            self._confirmed = self._batch
            self._work.count(len(steps), perf_counter() - began)
            faults.point("sql.after_commit")
        else:
            # All refused, found nothing or were repeats: there is nothing to make durable.
            await self._roll_back(connection)
        for step in steps:
            faults.point(step.law.after_commit)
        for callback in _callbacks(steps):
            callback()

    async def _commit(self, connection: Connection) -> None:
        self._batch += 1
        mark = (
            f"insert into writer (id, batch) values ('{self._writer}', {self._batch})"
            " on conflict (id) do update set batch = excluded.batch; commit"
        )
        try:
            faults.point("sql.before_commit")
            await connection.raw.execute(mark)
            faults.point("sql.in_doubt")
        except Exception as error:
            await self._roll_back(connection)
            if not await self._committed(error):
                raise

    async def _committed(self, error: Exception) -> bool:
        """Whether the batch that failed in COMMIT is durable. The lock waits for its old backend."""
        began = perf_counter()
        failures = 0
        while True:
            try:
                connection = await self._connected()
                async with connection.raw.transaction():
                    batch = await connection.raw.fetchval(READ_BATCH, self._writer)
                return bool(batch == self._batch)
            except DRIVER_ERRORS as again:
                failures += 1
                if perf_counter() - began > DOUBT_SECONDS:
                    raise unavailable(again, doing="say whether it committed") from error
                await self._drop()
                await asyncio.sleep(self._backoff.after(failures))

    async def _connected(self) -> Connection:
        if self._connection is None or is_gone(self._connection.raw):
            await self._drop()
            connection = Connection(await self._source.lease())
            try:
                if self._confirmed:
                    await self._recognize(connection)
                else:
                    # It must be there before the first batch: an absent row cannot be locked.
                    await connection.raw.execute(FIRST_BATCH, self._writer)
            except BaseException:
                await self._source.drop(connection.raw)
                raise
            self._connection = connection
        return self._connection

    async def _recognize(self, connection: Connection) -> None:
        """After a lost connection: is it the ledger that this process opened, with all it committed?"""
        written = await connection.raw.fetchval(WRITTEN, self._writer)
        missing = written is None or written < self._confirmed
        if await still_there(connection.raw, missing):
            return
        raise self._work.refuse(
            WrongLedger(
                "the database was restored or replaced since this process opened it",
                where=WHERE,
                next_step="restart this process",
            )
        )

    async def _roll_back(self, connection: Connection) -> None:
        try:
            if connection.raw.is_in_transaction():
                await connection.raw.execute("rollback", timeout=5)
        except Exception:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._source.drop(connection.raw)


class _Locked(Exception):
    """A unit of the batch waits for a lock that somebody keeps: the others must not wait with it."""


@dataclass(slots=True)
class _Attempts:
    """Which failures of one batch were seen, and so whether another attempt is of use."""

    count: int = 0
    looks: int = 0
    races: int = 0
    clean: bool = False

    def held(self, steps: Sequence[Step]) -> bool:
        """Whether a unit found nothing because others hold it, and may look again."""
        self.looks += 1
        for step in steps:
            error = step.error
            if isinstance(error, Again):
                if self.looks < LOOKS_MAX:
                    return True
                step.error, step.verdict = None, error.verdict
        return False

    def worth(self, cause: Exception, *, alone: bool) -> bool:
        self.count += 1
        match meaning(cause):
            case Meaning.AGAIN | Meaning.LOST:
                return True
            case Meaning.RACE:
                # What the other host wrote is seen by the next try.
                self.races += 1
                return alone and self.races < RACES_MAX
            case _:
                if not alone or self.clean:
                    return False
                self.clean = isinstance(cause, asyncpg.CharacterNotInRepertoireError)
                return self.clean


def _callbacks(steps: Sequence[Step]) -> list[Callable[[], None]]:
    return [callback for step in steps for callback in step.callbacks]


def _resolve(entry: Entry, step: Step) -> None:
    if entry.future is None or entry.future.done():
        return
    if step.error is not None:
        entry.future.set_exception(step.error)
    else:
        entry.future.set_result(step.verdict)
