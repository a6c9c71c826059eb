"""A PostgreSQL database as a ledger: lanes of batches, each on a connection of its own.

A lane takes the units whose conflict keys are free, runs their laws in step inside one transaction,
and commits once. READ COMMITTED with row locks is enough: what a law reads before it decides, it has
locked by an earlier statement. Reads of one statement need no transaction; others get a snapshot.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, TypeVar

import asyncpg

from nerve.common.clock import Clock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.sql.law import ALONE, Law, Tx
from nerve.common.sql.ledger import LedgerIdentity
from nerve.common.sql.migrate import Schema
from nerve.common.sql.postgres_errors import (
    COMING,
    DRIVER_ERRORS,
    said,
    unavailable,
)
from nerve.common.sql.postgres_lane import Entry, Lane
from nerve.common.sql.postgres_reader import Reader
from nerve.common.sql.postgres_schema import prepare
from nerve.common.sql.postgres_source import Source, check_pooling, check_room, source_of
from nerve.common.sql.queue import KeyedQueue
from nerve.protocol.errors import LedgerUnavailable, NerveError
from nerve.protocol.identity import new_uuid7

U = TypeVar("U")
V = TypeVar("V")

_log = get_log("nerve.common.postgres")

BATCH_UNITS_MAX = 64
DEFER_SECONDS = 0.25
HELP_SECONDS = 0.05
LANES = 2
READERS = 1


class PostgresLedger:
    """`Ledger` over connections that it leases from `source`."""

    one_machine = False

    def __init__(
        self,
        identity: LedgerIdentity,
        source: Source,
        *,
        writer: str,
        lanes: int = LANES,
        readers: int = READERS,
        observe: Callable[[int, float], None] | None = None,
    ) -> None:
        self.source = source
        self._identity = identity
        self._queue = KeyedQueue.empty()
        self._deferred: list[Entry] = []
        self._timer: asyncio.TimerHandle | None = None
        self._helping: asyncio.TimerHandle | None = None
        self._lanes = [Lane(self, source, f"{writer}-{number}") for number in range(lanes)]
        self._readers = [Reader(source) for _ in range(readers)]
        self._observe = observe
        self._refusal: NerveError | None = None
        self.commits = 0
        self.units = 0

    @property
    def identity(self) -> LedgerIdentity:
        return self._identity

    def blocked_by(self) -> str | None:
        """Why nothing could be committed for a second or more."""
        for lane in self._lanes:
            since = lane.blocked_since
            if since is not None and lane.cause is not None and perf_counter() - since >= 1.0:
                return f"the PostgreSQL server: {said(lane.cause)}"
        return None

    async def open(self) -> None:
        """Connect what will be needed at once."""
        for lane in self._lanes:
            await lane.open()

    async def commit(self, law: Law[U, V], unit: U) -> V:
        return await self.submit(law, unit)

    def submit(self, law: Law[U, V], unit: U) -> "asyncio.Future[V]":
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        if self._refusal is not None:
            future.set_exception(self._refusal)
            return future
        self._queue.put(Entry(law, unit, law.keys(unit), future))
        self._wake()
        return future

    def defer(self, law: Law[U, V], unit: U) -> None:
        if self._refusal is not None:
            return
        self._deferred.append(Entry(law, unit, law.keys(unit), None))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEFER_SECONDS, self._flush)

    async def read(self, query: Callable[[Tx], Awaitable[V]]) -> V:
        reader = min(self._readers, key=lambda each: each.waiting)
        return await reader.read(query)

    async def close(self) -> None:
        """Commit what is queued, then give the connections back; at once where it is cancelled."""
        try:
            await self._close()
        except BaseException:
            for lane in self._lanes:
                await lane.abandon()
            for reader in self._readers:
                await reader.abandon()
            raise

    async def _close(self) -> None:
        self._flush()
        while any(not lane.idle for lane in self._lanes):
            for lane in self._lanes:
                await lane.rest()
        # From here on: a lane that is woken again would keep the connection that it took for it.
        self._refusal = closed = LedgerUnavailable(
            "the ledger was closed by this process",
            where="ledger",
            next_step="open it again",
        )
        for timer in (self._timer, self._helping):
            if timer is not None:
                timer.cancel()
        for lane in self._lanes:
            await lane.close()
        for reader in self._readers:
            await reader.close(closed)
        await self.source.close()

    def take(self) -> list[Entry]:
        """The next batch of a lane; what may be lost rides along."""
        deferred, self._deferred = self._deferred, []
        for entry in deferred:
            self._queue.put(entry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return self._queue.take(BATCH_UNITS_MAX)

    def done(self, batch: Sequence[Entry]) -> None:
        self._queue.done(batch)
        if len(self._queue):
            self._wake()

    def part(self, batch: Sequence[Entry]) -> None:
        for entry in batch:
            self._queue.put(Entry(entry.law, entry.unit, (*entry.keys, ALONE), entry.future))

    def count(self, units: int, seconds: float) -> None:
        self.commits += 1
        self.units += units
        if self._observe is not None:
            self._observe(units, seconds)

    def refuse(self, error: NerveError) -> NerveError:
        if self._refusal is None:
            self._refusal = error
            _log.error("this process commits nothing more", cause="refused", error=error)
        return error

    def _flush(self) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        """One lane makes the largest batches. Another one helps where a whole batch waits, or where
        the first is held up."""
        first, *others = self._lanes
        if first.idle:
            first.wake()
            return
        if len(self._queue) >= BATCH_UNITS_MAX:
            self._help(others)
        elif self._helping is None:
            loop = asyncio.get_running_loop()
            self._helping = loop.call_later(HELP_SECONDS, self._help, others)

    def _help(self, others: Sequence[Lane]) -> None:
        if self._helping is not None:
            self._helping.cancel()
            self._helping = None
        lane = next((each for each in others if each.idle), None)
        if lane is not None and len(self._queue):
            lane.wake()


async def open_postgres(
    given: Any,
    schema: Schema,
    *,
    clock: Clock,
    create: bool,
    name: str | None = None,
    observe: Callable[[int, float], None] | None = None,
    lanes: int = LANES,
    readers: int = READERS,
    also_needed: int = 0,
    patience_seconds: float = 0.0,
) -> PostgresLedger:
    """Open (or make, where `create`) the ledger of one room in a database.

    Args:
        given: a URL, an asyncpg.Pool or a SQLAlchemy AsyncEngine, which stay the caller's.
        name: the schema that holds its tables; by default the first of the search path.
        also_needed: connections of the given one that are used beside the ledger.
        patience_seconds: for how long to wait for a server that does not answer yet.

    Raises:
        BadInput: too few connections, or a pooler that keeps no session.
        WrongLedger, SchemaTooNew, Damaged, LedgerUnavailable.
    """
    source = source_of(given, schema=name)
    check_room(source, lanes + readers + also_needed)
    now = clock.now_ms()
    async with reached():
        await _check_sessions(source, patience_seconds)
        identity = await prepare(source, schema, create=create, now=now)
        ledger = PostgresLedger(
            identity,
            source,
            writer=new_uuid7(now),
            lanes=lanes,
            readers=readers,
            observe=observe,
        )
        try:
            await ledger.open()
        except BaseException:
            await ledger.close()
            raise
    return ledger


async def _check_sessions(source: Source, patience_seconds: float) -> None:
    """Before anything is set or written: a pooler would give it to others."""
    one = await _answering(source, patience_seconds)
    try:
        other = await source.bare()
        try:
            await check_pooling(one, other)
        finally:
            await source.give_back(other)
    finally:
        await source.give_back(one)


async def _answering(source: Source, patience_seconds: float) -> "asyncpg.Connection[Any]":
    """A host may start before its server does, and while that restarts."""
    began = perf_counter()
    backoff = Backoff(first_seconds=0.1, most_seconds=2.0)
    failures = 0
    while True:
        try:
            return await source.bare()
        except COMING as error:
            if perf_counter() - began >= patience_seconds:
                raise
            failures += 1
            _log.warning("the database does not answer yet", cause="database", error=error)
            await asyncio.sleep(backoff.after(failures))


@asynccontextmanager
async def reached() -> AsyncGenerator[None]:
    """An error of the driver inside becomes one of ours, without any secret."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise unavailable(error, doing="open") from None
