"""The port of a ledger's engine: commit units in groups, read snapshots, say what is wrong."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nerve.common.sql.law import Law, Tx

U = TypeVar("U")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerIdentity:
    """Who a ledger is: `id` for its life, `epoch` raised when it was restored, adopted or made again
    in place of a lost one. What was sent before `epoch_at` may be missing in it; 0: since it was made."""

    id: str
    epoch: int
    created_at: int
    epoch_at: int = 0


class Ledger(Protocol):
    """One side's database.

    - `commit` returns the law's verdict after the transaction holding it is durable, and raises
      what the law raised; the units that shared its transaction are not harmed by that.
    - `defer` is for work that may be lost and repeated (forgetting a published message): it rides
      on the next commit, or makes one within a quarter of a second.
    - `read` runs a query function on one snapshot, beside the writer.
    - Errors: `LedgerUnavailable`, `DiskFull`, `Damaged`, `WrongLedger`.
    """

    @property
    def identity(self) -> LedgerIdentity: ...

    @property
    def one_machine(self) -> bool:
        """Whether every host of it is on this machine, so that another boot of it ended them all."""
        ...

    @property
    def commits(self) -> int:
        """Transactions committed by this process."""
        ...

    @property
    def units(self) -> int: ...

    def blocked_by(self) -> str | None:
        """What has kept this process from writing for a second or more, in words; None: nothing."""
        ...

    async def commit(self, law: Law[U, V], unit: U) -> V: ...

    def submit(self, law: Law[U, V], unit: U) -> "asyncio.Future[V]":
        """As `commit`, for many units at once: queue them all, then await each future."""
        ...

    def defer(self, law: Law[U, V], unit: U) -> None: ...

    async def read(self, query: Callable[[Tx], Awaitable[V]]) -> V: ...

    async def close(self) -> None: ...
