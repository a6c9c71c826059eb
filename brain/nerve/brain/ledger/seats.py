"""What a Brain ledger remembers of where it stands, and of another one in its cell."""

from dataclasses import dataclass

from nerve.common.sql import Tx, law, sql
from nerve.common.sql.seats import BEFORE, FOREIGN, SEAT

READ = sql("select value from meta where key = :key")
WRITE = sql(
    "insert into meta (key, value) values (:key, :value)"
    " on conflict (key) do update set value = excluded.value"
)


@law("brain.sit", keys=lambda unit: ("seat",))
async def sit(tx: Tx, unit: str) -> str | None:
    """Remember the seat `unit`; where the ledger stood elsewhere before, that one."""
    row = await tx.one(READ, key=SEAT)
    before = None if row is None else str(row["value"])
    if before == unit:
        return None
    await tx.run(WRITE, key=SEAT, value=unit)
    if before is not None:
        await tx.run(WRITE, key=BEFORE, value=before)
    return before


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A ledger of the same cell for which updates come here."""

    seat: str


@law("brain.meet", keys=lambda unit: ("seat",))
async def meet(tx: Tx, unit: Stranger) -> None:
    await tx.run(WRITE, key=FOREIGN, value=unit.seat)
