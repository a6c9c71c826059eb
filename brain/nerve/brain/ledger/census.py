"""How many of what a Brain's ledger holds now, for metrics; read when somebody looks, by no hot path."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.sql import Row, Tx, sql

TURNS = sql("select phase, count(*) as number from turn group by phase order by phase")
CALLS = sql(
    "select coalesce(route, 'local') as route, outcome, count(*) as number from intent"
    " group by coalesce(route, 'local'), outcome order by 1, 2"
)
ASKED = sql(
    "select route, outcome, count(*) as number, min(requested_at) as since from intent"
    " where state = 'OPEN' and kind = 'remote' group by route, outcome order by route, outcome"
)
UNKNOWN = sql("select count(*) as number from intent where outcome = 'UNKNOWN' and state = 'OPEN'")
RUNS = sql("select state, count(*) as number from run group by state order by state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Numbers of one snapshot. `runs` that are LOST were taken over from a host that went away."""

    turns: Sequence[Row]
    calls: Sequence[Row]
    runs: Sequence[Row]
    unknown: int


async def asked(tx: Tx) -> Sequence[Row]:
    """(route, outcome, number, since) of what was asked of Hands and is not answered."""
    return await tx.all(ASKED)


async def census(tx: Tx) -> Census:
    unknown = await tx.one(UNKNOWN)
    assert unknown is not None
    return Census(
        turns=await tx.all(TURNS),
        calls=await tx.all(CALLS),
        runs=await tx.all(RUNS),
        unknown=int(unknown["number"]),
    )
