"""Output of running tools: pages by byte offset that belong to one attempt of one execution."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.sql import Row, Tx, Value, law, sql
from nerve.hands.ledger.conditions import OWNED
from nerve.protocol.output import PageKind

APPEND = sql(
    "insert into output_page (execution, attempt, start, kind, length, data, reason)"
    " values (:execution, :attempt, :start, :kind, :length, :data, :reason)"
    " on conflict (execution, attempt, start, kind) do nothing"
)
OWNS = sql(
    f"select 1 from execution where id = :id and host = :host and token = :token and {OWNED}"
    " for update"
)
READ = sql(
    "select attempt, start, kind, length, data, reason from output_page"
    " where execution = :execution and attempt = :attempt"
    " and (start >= :offset or start + length > :offset) order by start, kind desc limit :limit"
)
END = sql(
    "select coalesce(max(start + length), 0) as total from output_page"
    " where execution = :execution and attempt = :attempt"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    kind: PageKind
    start: int
    length: int
    data: bytes | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    id: str
    host: str
    token: int
    attempt: int
    pages: Sequence[Page]


@law("hands.append_output", keys=lambda unit: (unit.id,))
async def append_output(tx: Tx, unit: Append) -> bool:
    """Keep pages of a running tool; False where this host does not own the execution any more."""
    if await tx.one(OWNS, id=unit.id, host=unit.host, token=unit.token) is None:
        return False
    await append_pages(tx, unit.id, unit.attempt, unit.pages)
    return True


async def append_pages(tx: Tx, execution: str, attempt: int, pages: Sequence[Page]) -> None:
    await tx.many(APPEND, [_row(execution, attempt, page) for page in pages])


async def append_page(tx: Tx, execution: str, attempt: int, page: Page) -> None:
    """As `append_pages`, where the law goes on to read what is there."""
    await tx.run(APPEND, **_row(execution, attempt, page))


def _row(execution: str, attempt: int, page: Page) -> dict[str, Value]:
    return {
        "execution": execution,
        "attempt": attempt,
        "start": page.start,
        "kind": page.kind,
        "length": page.length,
        "data": page.data,
        "reason": page.reason,
    }


async def read_pages(
    tx: Tx, execution: str, attempt: int, *, offset: int, limit: int
) -> Sequence[Row]:
    return await tx.all(READ, execution=execution, attempt=attempt, offset=offset, limit=limit)


async def output_end(tx: Tx, execution: str, attempt: int) -> int:
    row = await tx.one(END, execution=execution, attempt=attempt)
    assert row is not None
    return int(row["total"])
