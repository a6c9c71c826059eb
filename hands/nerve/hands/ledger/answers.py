"""Reads that answer questions: what an execution is now, its recorded updates, its output."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.sql import Row, Tx, sql
from nerve.hands.ledger.conditions import OWNED, READY, UNKNOWN
from nerve.hands.ledger.pages import read_pages
from nerve.hands.ledger.records import read_row
from nerve.hands.ledger.reports import LAST, POSITION, REPLAY

BARRED = sql("select code, reason from barred where execution = :id")
OPEN_UNKNOWN = sql(f"select * from execution where {UNKNOWN} order by ended_at, id limit :limit")
MINE = sql(f"select id, token, cancel_requested_at from execution where host = :host and {OWNED}")
# Each part has a partial index: what has ended is not counted, there may be millions of it.
OPEN_COUNTS = (
    sql(f"select state, count(*) as number from execution where {READY} group by state"),
    sql(f"select state, count(*) as number from execution where {OWNED} group by state"),
    sql(f"select state, count(*) as number from execution where {UNKNOWN} group by state"),
)
# Reads the whole table: for a scrape or a person, never for a loop of a worker.
COUNTS = sql("select state, count(*) as number from execution group by state")
OBSERVATIONS = sql("select * from observation where execution = :execution order by id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """One execution as the ledger has it, with its last recorded update."""

    position: int
    row: Row | None
    last: bytes | None = None
    barred: Row | None = None


async def position(tx: Tx) -> int:
    row = await tx.one(POSITION)
    assert row is not None
    return int(row["value"])


async def present(tx: Tx, execution: str) -> Present:
    row = await read_row(tx, execution)
    at = await position(tx)
    if row is None:
        return Present(position=at, row=None, barred=await tx.one(BARRED, id=execution))
    last = await tx.one(LAST, execution=execution, sequence=row["sequence"])
    return Present(position=at, row=row, last=None if last is None else last["envelope"])


async def recorded(tx: Tx, execution: str, from_sequence: int, limit: int) -> list[bytes]:
    rows = await tx.all(REPLAY, execution=execution, sequence=from_sequence, limit=limit)
    return [row["envelope"] for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    attempt: int
    row: Row
    pages: Sequence[Row]


async def output(
    tx: Tx, execution: str, attempt: int | None, *, offset: int, limit: int
) -> Output | None:
    """Pages of one attempt (the latest where None); None where there is no such execution."""
    row = await read_row(tx, execution)
    if row is None:
        return None
    which = row["attempt"] if attempt is None else attempt
    pages = await read_pages(tx, execution, which, offset=offset, limit=limit)
    return Output(attempt=which, row=row, pages=pages)


async def owned(tx: Tx, host: str) -> Sequence[Row]:
    """(id, token, cancel_requested_at) of what `host` owns and is not over."""
    return await tx.all(MINE, host=host)


async def open_unknown(tx: Tx, limit: int) -> Sequence[Row]:
    return await tx.all(OPEN_UNKNOWN, limit=limit)


async def open_counts(tx: Tx) -> dict[str, int]:
    """How many executions there are of each state that is not settled."""
    found: dict[str, int] = {}
    for statement in OPEN_COUNTS:
        found |= {row["state"]: row["number"] for row in await tx.all(statement)}
    return found


async def observations(tx: Tx, execution: str) -> Sequence[Row]:
    return await tx.all(OBSERVATIONS, execution=execution)
