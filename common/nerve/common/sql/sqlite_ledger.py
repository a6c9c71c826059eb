"""Open one SQLite file as a `Ledger`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from nerve.common.clock import Clock
from nerve.common.sql.committer import Committer
from nerve.common.sql.law import Law, Tx
from nerve.common.sql.ledger import LedgerIdentity
from nerve.common.sql.migrate import Schema, prepare
from nerve.common.sql.sqlite import BUSY_SECONDS, Reader
from nerve.common.writelock import described
from nerve.protocol.identity import new_uuid7

U = TypeVar("U")
V = TypeVar("V")


class SqliteLedger:
    """`Ledger` over one file."""

    one_machine = True

    def __init__(
        self,
        path: Path,
        identity: LedgerIdentity,
        *,
        writer: str,
        observe: Callable[[int, float], None] | None = None,
        lock_wait_seconds: float = BUSY_SECONDS,
    ) -> None:
        self.path = path
        self._identity = identity
        self._committer = Committer(
            path, writer, observe=observe, lock_wait_seconds=lock_wait_seconds
        )
        self._reader = Reader(path)

    @property
    def identity(self) -> LedgerIdentity:
        return self._identity

    @property
    def commits(self) -> int:
        """Transactions committed by this process."""
        return self._committer.commits

    @property
    def units(self) -> int:
        return self._committer.units

    @property
    def blocked_seconds(self) -> float:
        """For how long another process has kept this one from writing; 0 where none does."""
        return self._committer.blocked_seconds

    def blocked_by(self) -> str | None:
        """Who has kept this process from writing for a second or more, in words; None: nobody."""
        return described(self.path) if self.blocked_seconds >= 1.0 else None

    async def commit(self, law: Law[U, V], unit: U) -> V:
        return await self._committer.submit(law, unit)

    def submit(self, law: Law[U, V], unit: U) -> "asyncio.Future[V]":
        return self._committer.submit(law, unit)

    def defer(self, law: Law[U, V], unit: U) -> None:
        self._committer.defer(law, unit)

    async def read(self, query: Callable[[Tx], Awaitable[V]]) -> V:
        return self._reader.read(query)

    async def close(self) -> None:
        await self._committer.close()
        self._reader.close()


async def open_sqlite(
    path: Path,
    schema: Schema,
    *,
    clock: Clock,
    create: bool,
    observe: Callable[[int, float], None] | None = None,
    lock_wait_seconds: float = BUSY_SECONDS,
) -> SqliteLedger:
    """Open (or make, where `create`) the ledger of one room. Raises as `migrate.prepare`."""
    now = clock.now_ms()
    identity = await asyncio.to_thread(prepare, path, schema, create=create, now=now)
    return SqliteLedger(
        path,
        identity,
        writer=new_uuid7(now),
        observe=observe,
        lock_wait_seconds=lock_wait_seconds,
    )
