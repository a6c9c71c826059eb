"""A PostgreSQL database as a ledger: lanes of batches, each on a connection of its own.

A lane takes the units whose conflict keys are free, runs their laws in step inside one transaction,
and commits once. READ COMMITTED with row locks in the statements is enough: what a law read before it
decided, it has locked. A deadlock or a serialization failure repeats the batch; a law that raised
makes its batch run again one by one; and after a connection was lost in COMMIT the batch's number,
which the batch itself wrote, is read back under a lock before anything runs again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import asyncpg

from nerve.common import faults
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.sql import lockstep
from nerve.common.sql.law import Law, Tx, Value
from nerve.common.sql.ledger import LedgerIdentity
from nerve.common.sql.lockstep import Kind, LockstepTx, Step
from nerve.common.sql.queue import KeyedQueue
from nerve.common.sql.statement import ORDINAL, Statement, sql
from nerve.protocol.errors import LedgerUnavailable, NerveError

U = TypeVar("U")
V = TypeVar("V")

_log = get_log("nerve.common.postgres")

BATCH_UNITS_MAX = 64
DEFER_SECONDS = 0.25
REPEATS_MAX = 50
PATIENCE_SECONDS = 20.0

WRITE_BATCH = sql(
    "insert into writer (id, batch) values (:id, :batch)"
    " on conflict (id) do update set batch = excluded.batch"
)
READ_BATCH = sql("select batch from writer where id = :id for update")

_AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleSessionTimeoutError,
    OSError,
    TimeoutError,
)

Connect = Callable[[], Awaitable["asyncpg.Connection[Any]"]]
Disconnect = Callable[["asyncpg.Connection[Any]"], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Entry:
    law: Law[Any, Any]
    unit: Any
    keys: Sequence[str]
    future: asyncio.Future[Any] | None


class Connection:
    """One server connection that executes for laws in step."""

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


class _Lane:
    """One writing connection and its batch numbers."""

    def __init__(self, ledger: "PostgresLedger", writer: str) -> None:
        self._ledger = ledger
        self._writer = writer
        self._batch = 0
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(first_seconds=0.05, most_seconds=2.0)

    @property
    def idle(self) -> bool:
        return self._task is None

    def wake(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger-lane")

    async def close(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])
        if self._connection is not None:
            await self._ledger.disconnect(self._connection.raw)
            self._connection = None

    async def _run(self) -> None:
        try:
            while batch := self._ledger.take():
                try:
                    await self._settle(batch)
                finally:
                    self._ledger.done(batch)
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _settle(self, batch: list[_Entry]) -> None:
        steps = [Step(entry.law, entry.unit) for entry in batch]
        try:
            if not await self._patiently(steps):
                for step in steps:
                    step.error = None
                    await self._alone(step)
        except Exception as error:
            for step in steps:
                step.error = step.error or error
        for entry, step in zip(batch, steps, strict=True):
            _resolve(entry, step)

    async def _alone(self, step: Step) -> None:
        try:
            await self._patiently([step])
        except Exception as error:
            step.error = error

    async def _patiently(self, steps: Sequence[Step]) -> bool:
        """Commit the batch, again after a deadlock or a lost connection; False: a law raised."""
        began = perf_counter()
        failures = 0
        while True:
            try:
                return await self._together(steps)
            except _AGAIN as error:
                cause: Exception = error
            except asyncpg.UniqueViolationError as error:
                # Another host was first: what it wrote is seen by the next try.
                cause = error
                if len(steps) > 1:
                    return False
            except _LOST as error:
                cause = error
                await self._drop()
            failures += 1
            if failures >= REPEATS_MAX or perf_counter() - began > PATIENCE_SECONDS:
                raise _unavailable(cause)
            _log.warning("a batch is tried again", cause=type(cause).__name__, error=cause)
            await asyncio.sleep(self._backoff.after(failures) if failures > 1 else 0)

    async def _together(self, steps: Sequence[Step]) -> bool:
        connection = await self._connected()
        callbacks: list[Callable[[], None]] = []
        began = perf_counter()
        faults.point("sql.begin")
        await connection.raw.execute("begin")
        try:
            if not await lockstep.run(steps, connection, callbacks):
                await connection.raw.execute("rollback")
                return False
            for step in steps:
                faults.point(step.law.before_commit)
            self._batch += 1
            await connection.execute(Kind.RUN, WRITE_BATCH, [(self._writer, self._batch)])
        except BaseException:
            await self._roll_back(connection)
            raise
        await self._commit(connection)
        self._ledger.count(len(steps), perf_counter() - began)
        for step in steps:
            faults.point(step.law.after_commit)
        for callback in callbacks:
            callback()
        return True

    async def _commit(self, connection: Connection) -> None:
        try:
            faults.point("sql.before_commit")
            await connection.raw.execute("commit")
            faults.point("sql.in_doubt")
        except Exception as error:
            await self._roll_back(connection)
            if not await self._committed(error):
                raise
        faults.point("sql.after_commit")

    async def _committed(self, error: Exception) -> bool:
        """Whether the batch that failed in COMMIT is durable. The lock waits for its old backend."""
        failures = 0
        while True:
            try:
                connection = await self._connected()
                async with connection.raw.transaction():
                    batch = await connection.raw.fetchval(READ_BATCH.postgres, self._writer)
                return bool(batch == self._batch)
            except (*_LOST, *_AGAIN) as again:
                failures += 1
                if failures >= REPEATS_MAX:
                    raise _unavailable(again) from error
                await self._drop()
                await asyncio.sleep(self._backoff.after(failures))

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.raw.is_closed():
            self._connection = Connection(await self._ledger.connect())
        return self._connection

    async def _roll_back(self, connection: Connection) -> None:
        try:
            await asyncio.wait_for(connection.raw.execute("rollback"), 5)
        except Exception:
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.raw.terminate()


class PostgresLedger:
    """`Ledger` over connections that `connect` gives and `disconnect` takes back."""

    def __init__(
        self,
        identity: LedgerIdentity,
        *,
        writer: str,
        connect: Connect,
        disconnect: Disconnect,
        lanes: int = 2,
        readers: int = 1,
        observe: Callable[[int, float], None] | None = None,
    ) -> None:
        self.connect = connect
        self.disconnect = disconnect
        self._identity = identity
        self._queue = KeyedQueue.empty()
        self._deferred: list[_Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._lanes = [_Lane(self, f"{writer}-{number}") for number in range(lanes)]
        self._readers = [asyncio.Lock() for _ in range(readers)]
        self._reading: list[Connection | None] = [None] * readers
        self._observe = observe
        self._refusal: NerveError | None = None
        self.commits = 0
        self.units = 0

    @property
    def identity(self) -> LedgerIdentity:
        return self._identity

    async def commit(self, law: Law[U, V], unit: U) -> V:
        return await self.submit(law, unit)

    def submit(self, law: Law[U, V], unit: U) -> "asyncio.Future[V]":
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        if self._refusal is not None:
            future.set_exception(self._refusal)
            return future
        self._queue.put(_Entry(law, unit, law.keys(unit), future))
        self._wake()
        return future

    def defer(self, law: Law[U, V], unit: U) -> None:
        if self._refusal is not None:
            return
        self._deferred.append(_Entry(law, unit, law.keys(unit), None))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEFER_SECONDS, self._flush)

    async def read(self, query: Callable[[Tx], Awaitable[V]]) -> V:
        """One snapshot. A lost connection is replaced and the query runs again."""
        number = min(range(len(self._readers)), key=lambda each: self._readers[each].locked())
        async with self._readers[number]:
            for attempt in range(3):
                try:
                    return await self._snapshot(number, query)
                except _LOST as error:
                    self._reading[number] = None
                    if attempt == 2:
                        raise _unavailable(error) from error
        raise AssertionError("unreachable")

    async def _snapshot(self, number: int, query: Callable[[Tx], Awaitable[V]]) -> V:
        connection = self._reading[number]
        if connection is None or connection.raw.is_closed():
            connection = self._reading[number] = Connection(await self.connect())

        async def apply(tx: Tx, unit: None) -> V:
            return await query(tx)

        step = Step(Law("read", "", "", apply, lambda unit: ()), None)
        async with connection.raw.transaction(isolation="repeatable_read", readonly=True):
            await lockstep.run([step], connection, [])
        if step.error is not None:
            raise step.error
        verdict: V = step.verdict
        return verdict

    async def close(self) -> None:
        """Commit what is queued, then give the connections back."""
        self._flush()
        for lane in self._lanes:
            await lane.close()
        self._refusal = LedgerUnavailable(
            "the ledger was closed by this process",
            where="ledger",
            next_step="open it again",
        )
        for connection in self._reading:
            if connection is not None:
                await self.disconnect(connection.raw)

    def take(self) -> list[_Entry]:
        """The next batch of a lane; what may be lost rides along."""
        deferred, self._deferred = self._deferred, []
        for entry in deferred:
            self._queue.put(entry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._queue.take(BATCH_UNITS_MAX)

    def done(self, batch: Sequence[_Entry]) -> None:
        self._queue.done(batch)
        if len(self._queue):
            self._wake()

    def count(self, units: int, seconds: float) -> None:
        self.commits += 1
        self.units += units
        if self._observe is not None:
            self._observe(units, seconds)

    def _flush(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        # A second lane helps only while the first is on its way: together they would halve a batch.
        for lane in self._lanes:
            if lane.idle:
                lane.wake()
                return


def _resolve(entry: _Entry, step: Step) -> None:
    if entry.future is None or entry.future.done():
        return
    if step.error is not None:
        entry.future.set_exception(step.error)
    else:
        entry.future.set_result(step.verdict)


def _unavailable(error: Exception) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"the PostgreSQL ledger did not answer: {type(error).__name__}",
        where="--database",
        next_step="run `nerve doctor` to see what of it can be reached",
    )


__all__ = ["LockstepTx", "PostgresLedger"]
