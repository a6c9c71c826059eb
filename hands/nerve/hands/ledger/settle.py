"""What may go: a settled result shrinks to a tombstone, and tombstones go when no command can come."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.sql import Tx, law, sql
from nerve.hands.ledger.conditions import ENDED

SETTLE = sql(
    "update execution set command = null,"
    " forget_at = case when admit_before > :now then admit_before else :now end + :keep_ms"
    f" where id = :id and sequence <= :sequence and {ENDED} and forget_at is null"
)
DROP_REPORTS = sql(
    "delete from report where execution = :id"
    " and exists (select 1 from execution where id = :id and forget_at is not null)"
)
DUE = sql("select id from execution where forget_at is not null and forget_at <= :now limit :limit")
FORGET = (
    sql("delete from report where execution = :id"),
    sql("delete from output_page where execution = :id"),
    sql("delete from observation where execution = :id"),
    sql("delete from claim where execution = :id"),
    sql("delete from execution where id = :id and forget_at is not null"),
)
UNBAR = sql("delete from barred where until < :now")

FORGET_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """(execution, sequence) pairs whose results Brain applied."""

    executions: Sequence[tuple[str, int]]
    keep_ms: int
    now: int


@law("hands.settle", keys=lambda unit: tuple(id for id, _ in unit.executions))
async def settle(tx: Tx, unit: Settled) -> None:
    """Shrink. What is UNKNOWN keeps everything: a reconciled result must still reach Brain."""
    await tx.many(
        SETTLE,
        [
            {"id": id, "sequence": sequence, "keep_ms": unit.keep_ms, "now": unit.now}
            for id, sequence in unit.executions
        ],
    )
    await tx.many(DROP_REPORTS, [{"id": id} for id, _ in unit.executions])


@law("hands.forget", keys=lambda unit: ())
async def forget(tx: Tx, unit: int) -> bool:
    """Delete tombstones that are due at `unit` (now); True where more may be."""
    rows = await tx.all(DUE, now=unit, limit=FORGET_ROWS)
    ids = [{"id": row["id"]} for row in rows]
    for statement in FORGET:
        if ids:
            await tx.many(statement, ids)
    await tx.run(UNBAR, now=unit)
    return len(rows) == FORGET_ROWS


async def anything_to_forget(tx: Tx, now: int) -> bool:
    return await tx.one(DUE, now=now, limit=1) is not None
