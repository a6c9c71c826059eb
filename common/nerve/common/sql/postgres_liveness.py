"""Hosts of a PostgreSQL ledger: a session's advisory lock, which the server drops with its connection.

The heartbeat goes over the same connection. With a URL both live in a thread of their own, so that a
tool that blocks the event loop blocks no heartbeat; over a given pool they live on its loop.
"""

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, final

import asyncpg

from nerve.common import faults
from nerve.common.liveness import BEAT, LockSight
from nerve.common.sql.law import Row, Tx
from nerve.common.sql.ledger import Ledger
from nerve.common.sql.postgres_errors import DRIVER_ERRORS, UNREACHED, unavailable
from nerve.common.sql.postgres_source import Address, Source, UrlSource, is_gone
from nerve.common.sql.statement import sql

T = TypeVar("T")

BEAT_SECONDS_MAX = 15.0
AGAIN_SECONDS = 0.25
SETTLE_SECONDS = 5.0
TAKE = "select pg_try_advisory_lock($1)"
DROP = "select pg_advisory_unlock($1)"
# What is held in this database, and for how long the server has been up.
HELD = sql(
    "select null as held, 0 as up",
    server="select array(select (classid::bigint << 32) | objid::bigint from pg_locks"
    " where locktype = 'advisory' and granted and objsubid = 1 and database ="
    " (select oid from pg_database where datname = current_database())) as held,"
    " extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8 as up",
)


def lock_key(host: str) -> int:
    """The advisory lock of an incarnation."""
    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big", signed=True)


class _Session:
    """One session that holds the lock of `host`. A lost one is replaced at once, and takes it again."""

    def __init__(
        self,
        host: str,
        connect: Callable[[], Awaitable["asyncpg.Connection[Any]"]],
        drop: Callable[["asyncpg.Connection[Any]"], Awaitable[None]],
    ) -> None:
        self._host = host
        self._connect = connect
        self._drop = drop
        self._held = False
        self._one = asyncio.Lock()
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._connection: asyncpg.Connection[Any] | None = None

    async def open(self) -> None:
        async with self._one:
            await self._take()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="lifeline")

    async def beat(self) -> bool:
        """The row says whether this incarnation goes on, not the lock: while an old session still
        holds that, others see it held."""
        async with self._one:
            try:
                async with asyncio.timeout(BEAT_SECONDS_MAX):
                    connection = await self._take()
                    status = await connection.execute(BEAT.postgres, self._host)
            except DRIVER_ERRORS as error:
                await self._forget()
                raise unavailable(error) from error
            return status.endswith(" 1")

    async def close(self) -> "asyncpg.Connection[Any] | None":
        """Let go of the lock; the connection, where it still is in order."""
        if self._keeper is not None:
            self._keeper.cancel()
        try:
            async with self._one:
                await self._let_go()
        except BaseException:
            await self._forget()
            raise
        connection, self._connection = self._connection, None
        return connection

    async def _let_go(self) -> None:
        connection = self._connection
        if connection is None or is_gone(connection):
            return await self._forget()
        try:
            connection.remove_termination_listener(self._terminated)
            await connection.execute(DROP, lock_key(self._host))
        except DRIVER_ERRORS:
            await self._forget()

    async def _take(self) -> "asyncpg.Connection[Any]":
        if self._connection is not None and is_gone(self._connection):
            await self._forget()
        if self._connection is None:
            self._held = False
            self._connection = await self._connect()
            self._connection.add_termination_listener(self._terminated)
        if not self._held:
            self._held = await self._connection.fetchval(TAKE, lock_key(self._host))
        return self._connection

    async def _keep(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            async with self._one:
                try:
                    async with asyncio.timeout(BEAT_SECONDS_MAX):
                        await self._take()
                except UNREACHED:
                    await self._forget()
                    self._lost.set()
            if self._lost.is_set():
                await asyncio.sleep(AGAIN_SECONDS)

    async def _forget(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._drop(connection)

    def _terminated(self, connection: object) -> None:
        self._lost.set()


@final
class ThreadLifeline:
    """The session of an incarnation, with a loop of its own in a thread of its own."""

    def __init__(self, host: str, address: Address) -> None:
        self._source = UrlSource(address)
        self._session: _Session | None = None
        self._host = host
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="nerve-lifeline", daemon=True
        )
        self._thread.start()

    async def open(self) -> None:
        await asyncio.wrap_future(self._call(self._open()))

    def beat(self) -> bool:
        assert self._session is not None
        return self._call(self._session.beat()).result()

    def hang_up(self) -> None:
        """The lock is dropped by `drop`, after everything else."""

    async def drop(self) -> None:
        faults.point("common.lease.before_unlock")
        if self._thread.is_alive():
            try:
                await asyncio.wrap_future(self._call(self._close()))
            finally:
                self._call(self._stop())
                await asyncio.to_thread(self._thread.join)
                self._loop.close()
        faults.point("common.lease.after_unlock")

    def _call(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _open(self) -> None:
        self._session = _Session(self._host, self._source.lease, self._source.drop)
        await self._session.open()

    async def _close(self) -> None:
        connection = None if self._session is None else await self._session.close()
        if connection is not None:
            await self._source.give_back(connection)

    async def _stop(self) -> None:
        """After what else the loop has to do: it was cancelled, and gives back what it has."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)
        self._loop.call_soon(self._loop.stop)


@final
class LoopLifeline:
    """The session of an incarnation on a connection that the caller's pool gave."""

    def __init__(self, host: str, source: Source) -> None:
        self._source = source
        self._session = _Session(host, source.lease, source.drop)
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        await self._session.open()

    def beat(self) -> bool:
        beaten = asyncio.run_coroutine_threadsafe(self._session.beat(), self._loop)
        return beaten.result(2 * BEAT_SECONDS_MAX)

    def hang_up(self) -> None:
        """The connection is given back by `drop`, on its loop."""

    async def drop(self) -> None:
        faults.point("common.lease.before_unlock")
        connection = await self._session.close()
        if connection is not None:
            await self._source.give_back(connection)
        faults.point("common.lease.after_unlock")


@final
class PostgresLiveness:
    """Takes session locks, and reads all of them in one look."""

    def __init__(
        self, ledger: Ledger, source: Source, *, settle_seconds: float = SETTLE_SECONDS
    ) -> None:
        self._ledger = ledger
        self._source = source
        self._settle_seconds = settle_seconds

    async def take(self, host: str) -> ThreadLifeline | LoopLifeline:
        address = self._source.address
        lifeline = (
            LoopLifeline(host, self._source) if address is None else ThreadLifeline(host, address)
        )
        try:
            await lifeline.open()
        except BaseException:
            await lifeline.drop()
            raise
        faults.point("common.lease.locked")
        return lifeline

    async def look(self, hosts: Sequence[str]) -> Mapping[str, LockSight]:
        """A server that came up a moment ago has forgotten every lock; its hosts take them again.
        Until they had the time for it, a free lock says nothing."""

        async def query(tx: Tx) -> Row | None:
            return await tx.one(HELD)

        row = await self._ledger.read(query)
        assert row is not None
        held = set(row["held"])
        absent = LockSight.FREE if row["up"] >= self._settle_seconds else LockSight.UNSEEN
        return {host: LockSight.HELD if lock_key(host) in held else absent for host in hosts}

    def forget(self, host: str) -> None:
        """Nothing is left behind: the lock went with its session."""

    def writer(self) -> int | None:
        """Nobody: a transaction on a server locks rows, and a session that ends gives them back."""
        return None
