"""What travels together on a PostgreSQL ledger: reads that wait at the same moment, writes of one commit."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Tx, law, sql
from nerve.common.sql.postgres import PostgresLedger, open_postgres
from nerve.common.sql.postgres_connection import Connection
from nerve.protocol.errors import Conflict
from support.servers.postgres import database

pytestmark = pytest.mark.external

PUT = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, :route, 1, :position, 1, 1)"
)
MOVE = sql("update hands_ledger set position = position + :by where route = :route")
REFUSE = sql(
    "insert into refused (received_at, topic, code, reason, head)"
    " values (1, :topic, 'x', 'x', :head)"
)
FIND = sql("select position from hands_ledger where route = :route")
REFUSED = sql("select count(*) as found from refused where topic = :topic")

Query = Callable[[Tx], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Unit:
    route: str
    worse: bool = False


@law("test.batches.put", keys=lambda unit: (unit.route,))
async def put(tx: Tx, unit: Unit) -> None:
    """Three writes of two tables, none of which is looked back at."""
    await tx.later(PUT, route=unit.route, position=1)
    await tx.later(MOVE, route=unit.route, by=4)
    await tx.many(REFUSE, [{"topic": unit.route, "head": bytes([n])} for n in range(3)])
    if unit.worse:
        raise Conflict("no")


@pytest.fixture
async def ledger() -> AsyncGenerator[PostgresLedger]:
    async with database() as url:
        opened = await open_postgres(url, SCHEMA, clock=SystemClock(), create=True)
        yield opened
        await opened.close()


def position(route: str) -> Query:
    async def query(tx: Tx) -> int | None:
        row = await tx.one(FIND, route=route)
        return None if row is None else int(row["position"])

    return query


def both(route: str) -> Query:
    async def query(tx: Tx) -> tuple[int, int]:
        row, count = await tx.one(FIND, route=route), await tx.one(REFUSED, topic=route)
        assert row is not None and count is not None
        return int(row["position"]), int(count["found"])

    return query


async def refusing(tx: Tx) -> None:
    await tx.one(FIND, route="r0")
    raise Conflict("not this one")


async def test_writes_that_nobody_looks_back_at_keep_their_order_within_a_table(
    ledger: PostgresLedger,
) -> None:
    await asyncio.gather(*(ledger.commit(put, Unit(f"r{n}")) for n in range(20)))
    assert [await ledger.read(both(f"r{n}")) for n in range(20)] == [(5, 3)] * 20


async def test_a_unit_that_is_refused_takes_its_own_writes_back_alone(
    ledger: PostgresLedger,
) -> None:
    units = [Unit(f"r{n}", worse=n == 3) for n in range(8)]
    done = await asyncio.gather(
        *(ledger.commit(put, unit) for unit in units), return_exceptions=True
    )
    assert [type(each) for each in done].count(Conflict) == 1
    found = [await ledger.read(position(f"r{n}")) for n in range(8)]
    assert found == [5, 5, 5, None, 5, 5, 5, 5]


async def test_reads_that_wait_at_the_same_moment_are_asked_together_and_answered_apart(
    ledger: PostgresLedger,
) -> None:
    await asyncio.gather(*(ledger.commit(put, Unit(f"r{n}")) for n in range(4)))
    with mock.patch.object(
        Connection, "execute", autospec=True, side_effect=Connection.execute
    ) as asked:
        routes = [f"r{n}" for n in (0, 1, 9, 3, 0)]
        found = await asyncio.gather(*(ledger.read(position(route)) for route in routes))
    assert found == [5, 5, None, 5, 5]
    assert asked.call_count == 1


async def test_one_read_that_raises_or_needs_a_snapshot_changes_nothing_for_the_others(
    ledger: PostgresLedger,
) -> None:
    await asyncio.gather(*(ledger.commit(put, Unit(f"r{n}")) for n in range(4)))
    for _ in range(2):
        queries = [position("r0"), refusing, both("r1"), both("r2"), position("r3")]
        found = await asyncio.gather(*map(ledger.read, queries), return_exceptions=True)
        assert isinstance(found.pop(1), Conflict)
        assert found == [5, (5, 3), (5, 3), 5]


async def test_a_read_that_nobody_waits_for_any_more_does_not_harm_the_others(
    ledger: PostgresLedger,
) -> None:
    await ledger.commit(put, Unit("r0"))
    given_up = [asyncio.ensure_future(ledger.read(position("r0"))) for _ in range(3)]
    await asyncio.sleep(0)
    given_up[1].cancel()
    found = await asyncio.gather(*given_up, return_exceptions=True)
    assert [each for each in found if not isinstance(each, BaseException)] == [5, 5]
