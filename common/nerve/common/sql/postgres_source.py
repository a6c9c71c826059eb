"""Where a PostgreSQL ledger gets its connections: a URL, or a pool or an engine of the caller.

Connections are leased for as long as the ledger lives, since giving one back and taking it again
costs more than a small transaction. What was given stays the caller's: its settings hold, and it is
never closed here. Its loop is the caller's too: whoever needs connections of another loop asks for
`address`, which only a URL has.
"""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, cast, final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from nerve.common.sql.postgres_errors import WHERE, said
from nerve.protocol.errors import BadInput, LedgerUnavailable

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

CONNECT_SECONDS = 10.0
STATEMENTS = 512
"""Prepared ones that a connection keeps: those of the laws, and what goes together of them."""
COMMAND_SECONDS = 60.0
IDLE_IN_TRANSACTION = "15s"
LOCK_TIMEOUT = "2s"

AS_IT_WAS = (
    "select string_agg(format('select set_config(%L, %L, false)', name, current_setting(name)), '; ')"
    " from unnest(array['search_path', 'lock_timeout', 'idle_in_transaction_session_timeout'])"
    " as settings (name)"
)
"""Statements that set again what `set_up` changes."""

Raw = "asyncpg.Connection[Any]"
Given = "str | asyncpg.Pool[Any] | AsyncEngine"


class Source(Protocol):
    """Leases connections that are set up for one ledger."""

    @property
    def schema(self) -> str | None:
        """Whose tables are meant; None: the first of the search path."""
        ...

    @property
    def address(self) -> "Address | None":
        """How to connect from anywhere, where that is known."""
        ...

    @property
    def most(self) -> int | None:
        """How many connections it can give at once; None: as many as the server allows."""
        ...

    async def bare(self) -> "asyncpg.Connection[Any]":
        """A connection as it was given: nothing of its session is set."""
        ...

    async def lease(self) -> "asyncpg.Connection[Any]":
        """A connection that is set up as the laws need it."""
        ...

    async def give_back(self, connection: "asyncpg.Connection[Any]") -> None:
        """It may serve others, or is dropped where it turns out to be broken. Never raises."""
        ...

    async def drop(self, connection: "asyncpg.Connection[Any]") -> None:
        """It is broken or in an unknown state. Never raises."""
        ...

    async def close(self) -> None: ...


def is_gone(connection: "asyncpg.Connection[Any]") -> bool:
    """Whether it was lost. A pool takes its own back at that moment, and they answer nothing any more."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


@asynccontextmanager
async def dropped_on_error(
    source: Source, connection: "asyncpg.Connection[Any]"
) -> AsyncGenerator[None]:
    """A block that leaves a connection in order, or not at all: also where it is cancelled."""
    try:
        yield
    except BaseException:
        await source.drop(connection)
        raise


@asynccontextmanager
async def leased(source: Source) -> AsyncGenerator["asyncpg.Connection[Any]"]:
    """A connection for a block."""
    connection = await source.lease()
    async with dropped_on_error(source, connection):
        yield connection
    await source.give_back(connection)


def source_of(given: Any, *, schema: str | None = None) -> Source:
    """The source over a URL, an asyncpg pool or a SQLAlchemy AsyncEngine. Raises BadInput."""
    if isinstance(given, str):
        return UrlSource(Address(given, schema))
    pool: Any = asyncpg.Pool
    if isinstance(given, pool):
        return PoolSource(given, schema)
    if hasattr(given, "sync_engine"):
        return EngineSource(given, schema)
    raise BadInput(
        f"a PostgreSQL ledger cannot be opened from a {type(given).__name__}",
        where="database",
        next_step="give a URL, an asyncpg.Pool or a SQLAlchemy AsyncEngine",
    )


def redacted(url: str) -> str:
    """The URL without its password, and without any parameter that may hold one."""
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    place = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    kept = [(key, value) for key, value in parse_qsl(parts.query) if "pass" not in key.lower()]
    return urlunsplit((parts.scheme, user + place, parts.path, urlencode(kept), ""))


@final
class Address:
    """A server and a database, with the schema whose tables are meant. Its text is redacted."""

    def __init__(self, url: str, schema: str | None = None) -> None:
        scheme = url.partition("://")[0]
        if scheme.partition("+")[0] not in ("postgresql", "postgres"):
            raise BadInput(
                f"{redacted(url)} is not the address of a PostgreSQL database",
                where=WHERE,
                next_step="it looks like postgresql://user@host:5432/database",
            )
        self._url = "postgresql" + url[len(scheme) :]
        self.schema = schema

    def __str__(self) -> str:
        return redacted(self._url)

    __repr__ = __str__

    async def bare(self) -> "asyncpg.Connection[Any]":
        """A new connection, of whose session nothing is set."""
        return cast(
            "asyncpg.Connection[Any]",
            await asyncpg.connect(
                self._url,
                timeout=CONNECT_SECONDS,
                command_timeout=COMMAND_SECONDS,
                statement_cache_size=STATEMENTS,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
            ),
        )

    async def connect(self) -> "asyncpg.Connection[Any]":
        """A new connection, set up as the laws need it."""
        connection = await self.bare()
        try:
            await set_up(connection, self.schema)
        except BaseException:
            connection.terminate()
            raise
        return connection


async def set_up(connection: "asyncpg.Connection[Any]", schema: str | None) -> None:
    """A stopped process must not keep the locks of a transaction. Limits that stand are kept."""
    await connection.execute(
        "select set_config(name, wanted, false) from (values"
        f" ('idle_in_transaction_session_timeout', '{IDLE_IN_TRANSACTION}'),"
        f" ('lock_timeout', '{LOCK_TIMEOUT}')) as limits (name, wanted)"
        " where current_setting(name) = '0'"
    )
    if schema is not None:
        await connection.execute(f"set search_path to {quoted(schema)}")


def quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


@final
class UrlSource:
    """Connections of our own."""

    most = None

    def __init__(self, address: Address) -> None:
        self.address: Address | None = address
        self.schema = address.schema
        self._to = address

    async def bare(self) -> "asyncpg.Connection[Any]":
        return await self._to.bare()

    async def lease(self) -> "asyncpg.Connection[Any]":
        return await self._to.connect()

    async def give_back(self, connection: "asyncpg.Connection[Any]") -> None:
        try:
            await connection.close(timeout=2)
        except Exception:
            connection.terminate()

    async def drop(self, connection: "asyncpg.Connection[Any]") -> None:
        connection.terminate()

    async def close(self) -> None: ...


@final
class PoolSource:
    """Connections of the caller's pool."""

    address = None

    def __init__(self, pool: "asyncpg.Pool[Any]", schema: str | None) -> None:
        self._pool = pool
        self.schema = schema

    @property
    def most(self) -> int | None:
        return self._pool.get_max_size()

    async def bare(self) -> "asyncpg.Connection[Any]":
        try:
            leased: Any = await self._pool.acquire(timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise _exhausted(self.most) from error
        # The pool's wrapper around its connection forwards whatever a connection can do.
        return cast("asyncpg.Connection[Any]", leased)

    async def lease(self) -> "asyncpg.Connection[Any]":
        connection = await self.bare()
        async with dropped_on_error(self, connection):
            await set_up(connection, self.schema)
        return connection

    async def give_back(self, connection: "asyncpg.Connection[Any]") -> None:
        # One that cannot be reset is ended by the pool itself.
        await _quietly(self._pool.release(cast(Any, connection)))

    async def drop(self, connection: "asyncpg.Connection[Any]") -> None:
        # Also where it is closed already: between its loss and the pool's notice it keeps its place there,
        # and its listeners, of which a release would only complain.
        with suppress(asyncpg.InterfaceError):
            connection.terminate()
        await _quietly(self._pool.release(cast(Any, connection)))

    async def close(self) -> None: ...


@final
class EngineSource:
    """Driver connections of the caller's SQLAlchemy engine."""

    address = None

    def __init__(self, engine: "AsyncEngine", schema: str | None) -> None:
        if engine.dialect.driver != "asyncpg":
            raise BadInput(
                f"the engine uses the driver {engine.dialect.driver}",
                where="database",
                next_step="make it with postgresql+asyncpg://",
            )
        self._engine = engine
        self.schema = schema
        self._leased: dict[int, tuple[AsyncConnection, str]] = {}

    @property
    def most(self) -> int | None:
        pool: Any = self._engine.pool
        size, overflow = getattr(pool, "size", None), getattr(pool, "_max_overflow", None)
        if size is None or overflow is None or overflow < 0:
            return None
        return int(size()) + int(overflow)

    async def bare(self) -> "asyncpg.Connection[Any]":
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.exc import TimeoutError as PoolTimeout

        try:
            over = await self._engine.connect()
        except PoolTimeout as error:
            raise _exhausted(self.most) from error
        except DBAPIError as error:
            raise OSError(said(error.orig or error)) from error
        try:
            raw = (await over.get_raw_connection()).driver_connection
        except BaseException:
            await _quietly(over.close())
            raise
        assert raw is not None
        connection = cast("asyncpg.Connection[Any]", raw)
        self._leased[id(connection)] = over, ""
        return connection

    async def lease(self) -> "asyncpg.Connection[Any]":
        connection = await self.bare()
        over, _ = self._leased[id(connection)]
        async with dropped_on_error(self, connection):
            # What the engine set when it connected comes back with the connection.
            self._leased[id(connection)] = over, await connection.fetchval(AS_IT_WAS)
            await set_up(connection, self.schema)
        return connection

    async def give_back(self, connection: "asyncpg.Connection[Any]") -> None:
        _, as_it_was = self._leased.get(id(connection), (None, ""))
        if as_it_was:
            try:
                await connection.execute(as_it_was)
            except BaseException as error:
                await self.drop(connection)
                if isinstance(error, Exception):
                    return
                raise
        over, _ = self._leased.pop(id(connection), (None, ""))
        if over is not None:
            await _quietly(over.close())

    async def drop(self, connection: "asyncpg.Connection[Any]") -> None:
        over, _ = self._leased.pop(id(connection), (None, ""))
        if over is not None:
            await _quietly(over.invalidate())
            await _quietly(over.close())

    async def close(self) -> None: ...


async def _quietly(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception:
        return


def _exhausted(most: int | None) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"the given pool has none of its {most} connections free",
        where="database",
        next_step="give it more connections: a ledger keeps those that it uses for its whole life",
    )


def check_room(source: Source, needed: int) -> None:
    """Raises BadInput where a given pool can never give what is needed."""
    if source.most is not None and source.most < needed:
        raise BadInput(
            f"the given pool has at most {source.most} connections and {needed} are needed",
            where="database",
            next_step=f"allow at least {needed}, and more for what else uses it",
        )


POOLING_LOOKS = 3


async def check_pooling(one: "asyncpg.Connection[Any]", other: "asyncpg.Connection[Any]") -> None:
    """Refuse a pooler in transaction mode: locks of a session and LISTEN do not work behind one.

    There two of our connections share a server connection while neither is in a transaction. It may
    also lose the driver's prepared statements, which says the same.

    Raises:
        BadInput: it is one.
    """
    try:
        shares = any([await _shares(one, other) for _ in range(POOLING_LOOKS)])
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        shares = True
    if shares:
        raise BadInput(
            "the database is behind a pooler in transaction mode, which keeps no session",
            where=WHERE,
            next_step="name the server itself, or a pooler in session mode",
        )


async def _shares(one: "asyncpg.Connection[Any]", other: "asyncpg.Connection[Any]") -> bool:
    pid = "select pg_backend_pid()"
    before = await one.fetchval(pid)
    async with other.transaction():
        # The only connection of a pool would be waited for in vain.
        return bool(before == await other.fetchval(pid) or before != await one.fetchval(pid))
