"""Where a Hands host keeps its truth: a file of a state directory, or a PostgreSQL database."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, final

from nerve.common.clock import Clock
from nerve.common.liveness import FileLiveness, Liveness
from nerve.common.place import StateDirectory
from nerve.common.sql import Ledger, open_sqlite
from nerve.common.sql.lives import recognize
from nerve.common.wakeups import Wakeups
from nerve.hands.ledger.schema import HANDS_SCHEMA

Observe = Callable[[int, float], None]


class HandsBackend(Protocol):
    """What a worker needs of its storage, while it is open."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def liveness(self) -> Liveness: ...

    @property
    def wakeups(self) -> Wakeups | None:
        """Hints that come with the ledger; None where the worker is given others."""
        ...

    async def close(self) -> None: ...


class HandsStorage(Protocol):
    """How to open it: a worker opens it when it starts, and closes what it opened."""

    async def open(
        self, route: str, *, clock: Clock, observe: Observe | None, create: bool = True
    ) -> HandsBackend: ...


@final
class _LocalBackend:
    wakeups = None

    def __init__(self, ledger: Ledger, liveness: Liveness) -> None:
        self.ledger = ledger
        self.liveness = liveness

    async def close(self) -> None:
        await self.ledger.close()


@final
class LocalStorage:
    """One file a route in a state directory."""

    def __init__(self, directory: StateDirectory) -> None:
        self._directory = directory

    async def open(
        self, route: str, *, clock: Clock, observe: Observe | None, create: bool = True
    ) -> HandsBackend:
        name = f"hands-{route}"
        path = self._directory.ledger(name)
        known = name in self._directory.ledgers
        if known:
            await asyncio.to_thread(recognize, self._directory, name, now=clock.now_ms())
        ledger = await open_sqlite(
            path, HANDS_SCHEMA, clock=clock, create=create and not known, observe=observe
        )
        self._directory.made(name)
        if not known:
            await asyncio.to_thread(recognize, self._directory, name, now=clock.now_ms())
        return _LocalBackend(ledger, FileLiveness(self._directory.locks, ledger.path))


@final
class PostgresStorage:
    """A URL, an asyncpg.Pool or a SQLAlchemy AsyncEngine, which stay the caller's.

    One database or schema serves one route.
    """

    def __init__(
        self, given: Any, *, schema: str | None = None, patience_seconds: float = 0.0
    ) -> None:
        """`patience_seconds`: for how long to wait for a server that does not answer yet."""
        self._given = given
        self._patience_seconds = patience_seconds
        self._schema = schema

    async def open(
        self, route: str, *, clock: Clock, observe: Observe | None, create: bool = True
    ) -> HandsBackend:
        from nerve.common.sql.postgres_place import PostgresPlace

        return await PostgresPlace.open(
            self._given,
            HANDS_SCHEMA,
            clock=clock,
            create=create,
            name=self._schema,
            observe=observe,
            patience_seconds=self._patience_seconds,
        )
