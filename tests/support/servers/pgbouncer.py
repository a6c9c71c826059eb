"""PgBouncer before the PostgreSQL server of the tests, in a mode of the test's own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

from support.servers.native import NativeServer
from support.services import Service

VARIABLE = "NERVE_TEST_PGBOUNCER"


@asynccontextmanager
async def pooler(url: str, mode: str, *, size: int = 20) -> AsyncGenerator[str]:
    """The database of `url` as it is seen through a pooler; the test is skipped where there is none."""
    parts = urlsplit(url)
    environment = {
        "NERVE_PGBOUNCER_SERVER": f"{parts.hostname}:{parts.port}",
        "NERVE_PGBOUNCER_MODE": mode,
        "NERVE_PGBOUNCER_SIZE": str(size),
    }
    server = NativeServer("pgbouncer", programs=["pgbouncer"], environment=environment)
    # Never an address from the environment: the mode is the test's.
    service = Service(name="pgbouncer", variable="", native=[lambda: server.address(VARIABLE)])
    try:
        place = await asyncio.to_thread(service.address)
        credentials = parts.netloc.rpartition("@")[0]
        yield urlunsplit((parts.scheme, f"{credentials}@{place}", parts.path, parts.query, ""))
    finally:
        await asyncio.to_thread(server.drop)
