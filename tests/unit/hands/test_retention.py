"""What a Hands ledger removes after a time, and what it keeps for whoever has to decide."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from nerve.common.clock import VirtualClock
from nerve.common.settings import Settings
from nerve.common.sql import Tx, law, sql
from nerve.common.sql.retention import Retention
from nerve.hands.ledger import retention
from nerve.hands.ledger.settle import Settled, forget, settle
from nerve.protocol.execution import Effect, ExecutionState
from support.hands_ledger import Book, open_book
from support.servers.postgres import database

DAY_MS = 24 * 3600 * 1000

pytestmark = pytest.mark.capability("F10.1")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.external)])
async def book(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Book]:
    clock = VirtualClock()
    if request.param == "sqlite":
        async with open_book(tmp_path / "hands.db", clock) as opened:
            yield opened
    else:
        async with database() as url, open_book(url, clock) as opened:
            yield opened


@law("test.write_evidence", keys=lambda unit: (unit[0],))
async def write_evidence(tx: Tx, unit: tuple[str, int]) -> None:
    execution, now = unit
    await tx.run(
        sql(
            "insert into observation (execution, source, host, token, attempt, state, effect,"
            " observed_at) values (:id, 'x', 'x', 1, 1, 'SUCCEEDED', 'completed', :now)"
        ),
        id=execution,
        now=now,
    )
    await tx.run(
        sql("insert into claim (execution, owner, token, until) values (:id, 'me', 1, :now)"),
        id=execution,
        now=now,
    )
    await tx.run(
        sql(
            "insert into receipt (request_id, execution, digest, operator, owner, evidence, state,"
            " effect, sequence, reconciled_at)"
            " values (:id, :id, 'x', 'x', 'x', 'x', 'SUCCEEDED', 'completed', 1, :now)"
        ),
        id=execution,
        now=now,
    )


async def left(book: Book) -> dict[str, set[str]]:
    async def query(tx: Tx) -> dict[str, set[str]]:
        return {
            table: {row["execution"] for row in await tx.all(sql(f"select execution from {table}"))}
            for table in ("observation", "claim", "receipt")
        }

    return await book.ledger.read(query)


async def walk(book: Book) -> None:
    duty = Retention(book.ledger, retention.kinds(Settings()), clock=book.clock, interval_seconds=1)
    while await duty.run_once():
        pass


async def test_evidence_stays_with_what_is_unknown_and_goes_with_the_rest(book: Book) -> None:
    unknown, known = book.command(), book.command()
    await book.admit(unknown, known)
    lost = (ExecutionState.UNKNOWN, Effect.UNCONFIRMED)
    await book.finish(unknown.id, state=lost[0], effect=lost[1])
    await book.finish(known.id)
    for command in (unknown, known):
        await book.ledger.commit(write_evidence, (command.id, book.now))
    both = {unknown.id, known.id}
    await walk(book)
    assert await left(book) == dict.fromkeys(("observation", "claim", "receipt"), both)
    await book.clock.advance(366 * 24 * 3600)
    await walk(book)
    assert await left(book) == {
        "observation": {unknown.id},
        "claim": {unknown.id},
        "receipt": both,
    }, "a decision stays as long as what it decided"
    sequence = (await book.row(known.id))["sequence"]
    await book.ledger.commit(
        settle, Settled(executions=[(known.id, sequence)], keep_ms=DAY_MS, now=book.now)
    )
    await book.clock.advance(2 * 24 * 3600)
    assert await book.ledger.commit(forget, book.now) is False
    await walk(book)
    assert (await left(book))["receipt"] == {unknown.id}
    assert (await book.row(unknown.id))["state"] == "UNKNOWN"
