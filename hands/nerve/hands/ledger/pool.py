"""What a pool has to do and who does it, read when somebody looks; each part has a partial index."""

from dataclasses import dataclass

import orjson

from nerve.common.sql import Tx, sql
from nerve.hands.ledger.conditions import OWNED, READY, UNKNOWN

WAITING = sql(f"select count(*) as number, min(admitted_at) as since from execution where {READY}")
RUNNING = sql(f"select count(*) as number, min(started_at) as since from execution where {OWNED}")
UNDECIDED = sql(f"select count(*) as number from execution where {UNKNOWN}")
HOSTS = sql("select id, state, offers from host where state <> 'RELEASED' order by registered_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One host of the pool. `slots` None: it does not say."""

    id: str
    draining: bool
    slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCensus:
    """One snapshot. Times are milliseconds since the epoch, None where there is nothing of the kind."""

    waiting: int
    waiting_since: int | None
    running: int
    running_since: int | None
    unknown: int
    replicas: tuple[Replica, ...]


async def pool(tx: Tx) -> PoolCensus:
    waiting = await tx.one(WAITING)
    running = await tx.one(RUNNING)
    unknown = await tx.one(UNDECIDED)
    assert waiting is not None and running is not None and unknown is not None
    return PoolCensus(
        waiting=waiting["number"],
        waiting_since=waiting["since"],
        running=running["number"],
        running_since=running["since"],
        unknown=unknown["number"],
        replicas=tuple(
            Replica(
                id=row["id"],
                draining=row["state"] == "DRAINING",
                slots=orjson.loads(row["offers"]).get("slots"),
            )
            for row in await tx.all(HOSTS)
        ),
    )
