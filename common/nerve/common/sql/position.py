"""The monotone position of a ledger, raised by the transactions that report to others."""

from nerve.common.sql.law import Tx
from nerve.common.sql.statement import sql

NEXT_POSITION = sql(
    "update meta set value = cast(cast(value as bigint) + 1 as text)"
    " where key = 'position' returning value"
)
SEVERAL_POSITIONS = (
    "update meta set value = cast(cast(value as bigint) + $1 as text)"
    " where key = 'position' returning cast(value as bigint)"
)
"""For a server: as many at once as units of a batch ask for. It returns the last of them."""


async def next_position(tx: Tx) -> int:
    """Raise the ledger's monotone position inside the caller's transaction and return it."""
    row = await tx.one(NEXT_POSITION)
    assert row is not None
    return int(row[0])
