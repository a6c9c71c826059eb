"""PostgreSQL for tests: one server a run, a database of its own for each test."""

import asyncio
import atexit
import secrets
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from support.servers import containers
from support.servers.containers import ContainerServer, provider
from support.servers.native import NativeServer
from support.services import Service, required

VARIABLE = "NERVE_TEST_POSTGRES_URL"

server = NativeServer("postgres", programs=["initdb"], shared=True)
atexit.register(server.drop)


def _native() -> str:
    return server.address(VARIABLE)


_container = provider(ContainerServer(containers.POSTGRES), VARIABLE)
POSTGRES = Service(name="postgres", variable=VARIABLE, native=[_native], container=[_container])


def with_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))


async def make_database(url: str, *, template: str | None = None) -> str:
    """The URL of a new database on the server of `url`; of the `template`, a copy of what stands in it."""
    import asyncpg

    name = f"t_{secrets.token_hex(6)}"
    likewise = "" if template is None else f" template {urlsplit(template).path[1:]}"
    # Nobody may be connected to a template.
    connection = await asyncpg.connect(with_database(url, "postgres") if template else url)
    try:
        await connection.execute(f"create database {name}{likewise}")
    finally:
        await connection.close()
    return with_database(url, name)


async def drop_database(url: str) -> None:
    """Remove it, whoever is still connected. A server that is gone has nothing to remove."""
    import asyncpg

    name = urlsplit(url).path[1:]
    try:
        connection = await asyncpg.connect(with_database(url, "postgres"))
    except (OSError, asyncpg.PostgresError):
        return
    try:
        await connection.execute(f"drop database if exists {name} with (force)")
    finally:
        await connection.close()


@asynccontextmanager
async def database() -> AsyncGenerator[str]:
    """A fresh database, or the test is skipped where there is no server."""
    if not required(POSTGRES.name):
        pytest.importorskip("asyncpg")
    url = await make_database(await asyncio.to_thread(POSTGRES.address))
    try:
        yield url
    finally:
        await drop_database(url)


def execute(address: Any, text: str) -> None:
    """Run one statement on a connection of its own; blocks, as a person with psql would not."""

    async def work() -> None:
        connection = await address.connect()
        try:
            await connection.execute(text)
        finally:
            await connection.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(work())).result()
