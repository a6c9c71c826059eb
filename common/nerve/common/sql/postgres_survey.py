"""What a PostgreSQL ledger says of itself and of its server, for `doctor`: read, never changed."""

from dataclasses import dataclass
from typing import Any, final

import asyncpg

from nerve.common.sql.migrate import Meta
from nerve.common.sql.postgres_liveness import HELD, lock_key
from nerve.common.sql.postgres_schema import read_meta
from nerve.common.sql.postgres_source import Source
from nerve.common.sql.seats import notes

SERVER = (
    "select current_setting('server_version') as version, current_schema() as schema,"
    " current_setting('max_connections')::int as most,"
    " (select count(*) from pg_stat_activity) as used,"
    " current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous,"
    " extract(epoch from clock_timestamp())::float8 * 1000 as now"
)
HOSTS = "select id, role, state, pid from host where state <> 'RELEASED' order by registered_at"
OUTBOX = "select count(*) as depth, min(created_at) as oldest from outbox"
META = "select key, value from meta"
QUARANTINED = "select count(*) from inbox where state = 'QUARANTINED'"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteHost:
    """`held`: the server still has the session that holds its lock."""

    id: str
    role: str
    state: str
    pid: int
    held: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSurvey:
    version: str
    schema: str
    connections: int
    connections_max: int
    durable: bool
    now: int
    meta: Meta | None
    hosts: tuple[RemoteHost, ...] = ()
    outbox: int = 0
    outbox_oldest_at: int | None = None
    quarantined: int = 0
    notes: tuple[str, ...] = ()
    """What a person should know of its cell."""


async def survey(source: Source) -> RemoteSurvey:
    """Raises what the driver raises, and Damaged."""
    connection = await source.lease()
    try:
        return await _read(connection)
    finally:
        await source.give_back(connection)


async def _read(connection: "asyncpg.Connection[Any]") -> RemoteSurvey:
    server = await connection.fetchrow(SERVER)
    assert server is not None
    meta = await read_meta(connection)
    found: dict[str, Any] = {}
    if meta is not None:
        held = set((await connection.fetch(HELD.postgres))[0]["held"])
        outbox = await connection.fetchrow(OUTBOX)
        assert outbox is not None
        found = {
            "hosts": tuple(
                RemoteHost(**dict(row), held=lock_key(row["id"]) in held)
                for row in await connection.fetch(HOSTS)
            ),
            "outbox": outbox["depth"],
            "outbox_oldest_at": outbox["oldest"],
            "notes": tuple(
                notes({row["key"]: row["value"] for row in await connection.fetch(META)})
            ),
            "quarantined": await connection.fetchval(QUARANTINED),
        }
    return RemoteSurvey(
        version=server["version"],
        schema=server["schema"] or "",
        connections=server["used"],
        connections_max=server["most"],
        durable=server["fsync"] == "on" and server["synchronous"] != "off",
        now=int(server["now"]),
        meta=meta,
        **found,
    )
