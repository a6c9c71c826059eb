"""A Brain's storage on PostgreSQL."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import Clock, SystemClock
from nerve.common.objects.port import ObjectStore
from nerve.common.sql.postgres import PostgresLedger
from nerve.common.sql.postgres_liveness import PostgresLiveness
from nerve.common.sql.postgres_place import PostgresPlace
from nerve.common.sql.postgres_wakeups import PostgresWakeups
from nerve.protocol.errors import BadInput


class PostgresBackend:
    """A ledger, its hosts and its hints in one database; what it was opened from stays the caller's."""

    def __init__(self, place: PostgresPlace, objects: ObjectStore | None, clock: Clock) -> None:
        self._place = place
        self._objects = objects
        self.clock = clock

    @classmethod
    async def open(
        cls,
        given: Any,
        *,
        schema: str | None = None,
        create: bool = True,
        objects: ObjectStore | None = None,
        clock: Clock | None = None,
        patience_seconds: float = 0.0,
        observe: Callable[[int, float], None] | None = None,
    ) -> Self:
        """Open or make the Brain's ledger.

        Args:
            given: a URL, an asyncpg.Pool or a SQLAlchemy AsyncEngine.
            schema: the PostgreSQL schema of its tables, for several ledgers in one database.
            patience_seconds: for how long to wait for a server that does not answer yet.
            observe: called with units and seconds of each commit.

        Raises:
            BadInput: too few connections, or a pooler that keeps no session.
            WrongLedger: `create` is False and there is none, or it is another room's.
            SchemaTooNew, Damaged, LedgerUnavailable.
        """
        clock = clock or SystemClock()
        place = await PostgresPlace.open(
            given,
            SCHEMA,
            clock=clock,
            create=create,
            name=schema,
            observe=observe,
            patience_seconds=patience_seconds,
        )
        return cls(place, objects, clock)

    @property
    def ledger(self) -> PostgresLedger:
        return self._place.ledger

    @property
    def wakeups(self) -> PostgresWakeups:
        return self._place.wakeups

    @property
    def liveness(self) -> PostgresLiveness:
        return self._place.liveness

    @property
    def seat(self) -> str:
        return self._place.seat

    @property
    def objects(self) -> ObjectStore:
        if self._objects is None:
            raise BadInput(
                "this backend was given no object store",
                where="objects",
                next_step="pass objects= to PostgresBackend.open",
            )
        return self._objects

    async def close(self) -> None:
        await self._place.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
