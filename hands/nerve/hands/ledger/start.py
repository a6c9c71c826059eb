"""Starting what waits: a host with a free slot takes the oldest execution of a tool that it has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nerve.common.lease import require_live
from nerve.common.record import record
from nerve.common.sql import ALONE, Row, Tx, law, sql
from nerve.hands.ledger.conditions import READY
from nerve.hands.ledger.records import record_of
from nerve.hands.ledger.reports import Speaker, move
from nerve.hands.state.record import stale

OLDEST = sql(
    f"select * from execution where {READY} and binding_digest = :binding_digest"
    " order by admitted_at, id limit :limit for update skip locked"
)
START = sql(
    "update execution set state = 'STARTED', effect = 'unconfirmed', host = :host,"
    " token = token + 1, attempt = attempt + 1, epoch = :epoch, repeatable = :repeatable,"
    " started_at = :now, waiting = null"
    f" where id = :id and {READY} returning token, attempt"
)
OLDEST_OF_TENANT = sql(
    f"select * from execution where {READY} and binding_digest = :binding_digest"
    " and namespace = :namespace order by admitted_at, id limit :limit for update skip locked"
)
WAITING = sql(
    f"select binding_digest, '' as namespace, count(*) as number from execution"
    f" where {READY} group by binding_digest"
)
WAITING_BY_TENANT = sql(
    f"select binding_digest, namespace, count(*) as number from execution"
    f" where {READY} group by binding_digest, namespace"
)


ANYBODY = ""
"""The tenant of a lane where tenants are not told apart."""


@dataclass(frozen=True, slots=True)
class Lane:
    """What waits for the same room: calls of one binding, of one tenant where tenants are limited."""

    binding_digest: str
    namespace: str = ANYBODY


@record
class Want:
    """How many executions of one lane this host could run now."""

    lane: Lane
    repeatable: bool
    count: int


@record
class Start:
    host: str
    wants: Sequence[Want]
    speaker: Speaker
    now: int


@record
class Started:
    """An execution that this host now owns and must run."""

    id: str
    token: int
    attempt: int
    command: bytes


@record
class StartVerdict:
    started: Sequence[Started]
    more: Mapping[Lane, bool]
    """Whether more may be waiting than were taken."""


@law("hands.start", keys=lambda unit: (ALONE, *(want.lane.binding_digest for want in unit.wants)))
async def start(tx: Tx, unit: Start) -> StartVerdict:
    if not await require_live(tx, unit.host):
        return StartVerdict(started=(), more={})
    started: list[Started] = []
    more: dict[Lane, bool] = {}
    for want in unit.wants:
        rows = await _oldest(tx, want)
        more[want.lane] = len(rows) == want.count
        found = await tx.gather([_start(tx, unit, want, row) for row in rows])
        started += [one for one in found if one is not None]
    return StartVerdict(started=started, more=more)


async def _oldest(tx: Tx, want: Want) -> Sequence[Row]:
    lane = want.lane
    if lane.namespace == ANYBODY:
        return await tx.all(OLDEST, binding_digest=lane.binding_digest, limit=want.count)
    return await tx.all(
        OLDEST_OF_TENANT,
        binding_digest=lane.binding_digest,
        namespace=lane.namespace,
        limit=want.count,
    )


async def _start(tx: Tx, unit: Start, want: Want, row: Row) -> Started | None:
    record = record_of(row)
    obstacle = stale(record, epoch=unit.speaker.epoch, repeatable=want.repeatable)
    if obstacle is not None:
        await move(tx, unit.speaker, row, obstacle, now=unit.now)
        return None
    changed = await tx.one(
        START,
        id=record.id,
        host=unit.host,
        epoch=unit.speaker.epoch,
        repeatable=int(want.repeatable),
        now=unit.now,
    )
    if changed is None:
        return None
    return Started(
        id=record.id, token=changed["token"], attempt=changed["attempt"], command=row["command"]
    )


async def waiting(tx: Tx, *, by_tenant: bool) -> Mapping[Lane, int]:
    """How many executions of each lane are ready and owned by nobody."""
    rows = await tx.all(WAITING_BY_TENANT if by_tenant else WAITING)
    return {Lane(row["binding_digest"], row["namespace"]): row["number"] for row in rows}
