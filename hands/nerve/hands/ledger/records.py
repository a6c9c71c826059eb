"""Rows of `execution` as values, and the one statement that reads them."""

from nerve.common.sql.law import Row, Tx
from nerve.common.sql.statement import sql
from nerve.hands.state.record import Record
from nerve.protocol.execution import Effect, ExecutionState

READ = sql("select * from execution where id = :id")
LOCK = sql("select 1 from execution where id = :id for update")


async def read_row(tx: Tx, id: str) -> Row | None:
    return await tx.one(READ, id=id)


async def read_locked(tx: Tx, id: str) -> Row | None:
    """As it stands until the end of the transaction."""
    await tx.lock(LOCK, id=id)
    return await tx.one(READ, id=id)


def record_of(row: Row) -> Record:
    return Record(
        id=row["id"],
        state=ExecutionState(row["state"]),
        effect=Effect(row["effect"]),
        attempt=row["attempt"],
        host=row["host"],
        token=row["token"],
        epoch=row["epoch"],
        repeatable=bool(row["repeatable"]),
        cancel_requested=row["cancel_requested_at"] is not None,
    )
