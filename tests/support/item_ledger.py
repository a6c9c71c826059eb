"""A ledger with one table of its own, for tests of the engine: units put and count items."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from nerve.common.clock import SystemClock
from nerve.common.sql import Schema, SqliteLedger, Tx, law, open_sqlite, sql
from nerve.common.sql.schema import add_common_tables
from nerve.protocol.errors import Conflict

PUT = sql("insert into item (id, body) values (:id, :body)")
COUNT = sql("select count(*) as items from item")
IDS = sql("select id from item order by id")
FIND = sql("select body from item where id = :id")


@cache
def metadata() -> sa.MetaData:
    tables = sa.MetaData()
    add_common_tables(tables)
    sa.Table(
        "item",
        tables,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    return tables


SCHEMA = Schema(
    room="test", version=1, oldest_writer=1, metadata=metadata, migrations=Path(__file__).parent
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """`bad` raises before anything is written; `worse` after it."""

    id: str
    body: bytes = b""
    bad: bool = False
    worse: bool = False
    said: list[str] | None = None


@law("test.put", keys=lambda unit: (unit.id,))
async def put(tx: Tx, unit: Item) -> str:
    """Write an item and return its id."""
    if unit.bad:
        raise Conflict("refused before it wrote")
    await tx.run(PUT, id=unit.id, body=unit.body)
    if unit.worse:
        raise Conflict("refused after it wrote")
    if unit.said is not None:
        said = unit.said
        tx.after(lambda: said.append(unit.id))
    return unit.id


@law("test.look", keys=lambda unit: ())
async def look(tx: Tx, unit: str) -> bool:
    """Write nothing."""
    return await tx.one(FIND, id=unit) is not None


async def ids(tx: Tx) -> list[str]:
    return [row["id"] for row in await tx.all(IDS)]


async def count(tx: Tx) -> int:
    row = await tx.one(COUNT)
    assert row is not None
    return int(row["items"])


@asynccontextmanager
async def item_ledger(
    path: Path, *, create: bool = True, lock_wait_seconds: float = 10.0
) -> AsyncGenerator[SqliteLedger, None]:
    ledger = await open_sqlite(
        path, SCHEMA, clock=SystemClock(), create=create, lock_wait_seconds=lock_wait_seconds
    )
    try:
        yield ledger
    finally:
        await ledger.close()
