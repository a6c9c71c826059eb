"""Everything that one PostgreSQL ledger gives its host: laws, liveness and hints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import asyncpg

from nerve.common.clock import Clock
from nerve.common.sql.migrate import Schema
from nerve.common.sql.postgres import PostgresLedger, open_postgres
from nerve.common.sql.postgres_errors import DRIVER_ERRORS, unavailable
from nerve.common.sql.postgres_liveness import SETTLE_SECONDS, PostgresLiveness
from nerve.common.sql.postgres_source import Source, leased
from nerve.common.sql.postgres_wakeups import PostgresWakeups
from nerve.common.sql.seats import seat_of

PLACE = (
    "select oid::bigint as database, current_schema() as schema from pg_database"
    " where datname = current_database()"
)
SYSTEM = "select system_identifier::text from pg_control_system()"
SESSIONS = 2
"""One holds the host's lock and carries its heartbeat, one carries hints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPlace:
    ledger: PostgresLedger
    liveness: PostgresLiveness
    wakeups: PostgresWakeups
    seat: str
    """Server, database and schema, in a short name."""

    @classmethod
    async def open(
        cls,
        given: Any,
        schema: Schema,
        *,
        clock: Clock,
        create: bool,
        name: str | None = None,
        observe: Callable[[int, float], None] | None = None,
        settle_seconds: float = SETTLE_SECONDS,
        patience_seconds: float = 0.0,
    ) -> Self:
        """As `open_postgres`, with the sessions beside it."""
        ledger = await open_postgres(
            given,
            schema,
            clock=clock,
            create=create,
            name=name,
            observe=observe,
            also_needed=SESSIONS,
            patience_seconds=patience_seconds,
        )
        wakeups = PostgresWakeups(ledger.source, ledger.identity.id)
        try:
            seat = await _seat(ledger.source)
            await wakeups.open()
        except BaseException as error:
            await wakeups.aclose()
            await ledger.close()
            if isinstance(error, DRIVER_ERRORS):
                raise unavailable(error, doing="open") from error
            raise
        liveness = PostgresLiveness(ledger, ledger.source, settle_seconds=settle_seconds)
        return cls(ledger=ledger, liveness=liveness, wakeups=wakeups, seat=seat)

    async def close(self) -> None:
        try:
            await self.ledger.close()
        finally:
            await self.wakeups.aclose()


async def _seat(source: Source) -> str:
    """A physical replica that was promoted has the seat of its primary; a dump that was read has not."""
    async with leased(source) as connection:
        place = await connection.fetchrow(PLACE)
        try:
            system = await connection.fetchval(SYSTEM)
        except asyncpg.InsufficientPrivilegeError:
            system = ""
    assert place is not None
    return seat_of(system, place["database"], place["schema"])
