"""Hints between the processes of one PostgreSQL ledger, by LISTEN and NOTIFY on a session of their own.

Never in a transaction of the ledger: NOTIFY holds a lock of the whole database until its commit is
flushed. Here many hints leave in one statement, at most every few milliseconds, and wait for no disk.
"""

import asyncio
from typing import Any, final

import asyncpg

from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.sql.postgres_errors import UNREACHED
from nerve.common.sql.postgres_source import Source, dropped_on_error, is_gone
from nerve.common.wakeups import Listener, LocalWakeups, Subscription, bundled, hints_enabled

_log = get_log("nerve.common.postgres")

PAYLOAD_BYTES = 7800
PAUSE_SECONDS = 0.01
PENDING_MAX = 10_000


@final
class PostgresWakeups:
    """`Wakeups` for whoever opened the same ledger. Without its session only this process hears."""

    def __init__(self, source: Source, ledger_id: str, *, hints: bool | None = None) -> None:
        self._source = source
        self._channel = f"nerve_{ledger_id.replace('-', '')}"
        self._hints = hints_enabled() if hints is None else hints
        self._here = LocalWakeups(hints=self._hints)
        self._pending: dict[str, None] = {}
        self._rung = asyncio.Event()
        self._connection: asyncpg.Connection[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect at once; from now on the session is kept."""
        if self._hints:
            self._connection = await self._connect()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="wakeups")

    def ring(self, channel: str) -> None:
        if not self._hints or self._closed:
            return
        self._here.ring(channel)
        if len(self._pending) < PENDING_MAX:
            self._pending[channel] = None
        self._rung.set()

    def listen(self, channel: str, callback: Listener) -> Subscription:
        return self._here.listen(channel, callback)

    def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        """Send what is pending, and give the session back."""
        self._closed = True
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            await self._say_last()
        except UNREACHED:
            await self._drop()
        except BaseException:
            await self._drop()
            raise
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._source.give_back(connection)

    async def _say_last(self) -> None:
        connection = self._connection
        if connection is None:
            return
        async with asyncio.timeout(1):
            await self._send(connection)
            connection.remove_termination_listener(self._terminated)
            await connection.remove_listener(self._channel, self._arrived)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._source.drop(connection)

    def _arrived(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        if self._connection is not None and pid != self._connection.get_server_pid():
            self._here.hear(str(payload).split("\n"))

    async def _run(self) -> None:
        if not self._hints:
            return
        failures = 0
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                failures = 0
                await self._serve(self._connection)
            except UNREACHED as error:
                await self._drop()
                failures += 1
                _log.warning("hints have no session, scans go on", cause="wakeups", error=error)
                await asyncio.sleep(Backoff(first_seconds=0.1, most_seconds=5.0).after(failures))

    async def _connect(self) -> "asyncpg.Connection[Any]":
        connection = await self._source.lease()
        async with dropped_on_error(self._source, connection):
            await connection.execute("set synchronous_commit to off")
            connection.add_termination_listener(self._terminated)
            await connection.add_listener(self._channel, self._arrived)
        return connection

    def _terminated(self, connection: object) -> None:
        self._rung.set()

    async def _serve(self, connection: "asyncpg.Connection[Any]") -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            if is_gone(connection):
                raise ConnectionResetError("the session of the hints was closed")
            await self._send(connection)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _send(self, connection: "asyncpg.Connection[Any]") -> None:
        pending, self._pending = self._pending, {}
        for payload in bundled(pending, PAYLOAD_BYTES):
            if len(payload) > PAYLOAD_BYTES:
                continue  # The server would refuse it, and the others with it; a scan finds what it meant.
            await connection.execute("select pg_notify($1, $2)", self._channel, payload.decode())
