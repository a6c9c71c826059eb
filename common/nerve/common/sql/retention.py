"""What may go after a time: rows that are settled for good, found in small steps and removed for ever.

A duty walks each kind of row once an interval, a bounded batch at a time, and beside the traffic: it
reads a snapshot, and removes by key only what can never become needed again. Whoever comes second finds
less, so that all hosts of a ledger may do it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from nerve.common.clock import Clock
from nerve.common.logs import get_log
from nerve.common.sql.law import Row, Tx, Value, law
from nerve.common.sql.ledger import Ledger
from nerve.common.sql.statement import Statement, sql

_log = get_log("nerve.common.retention")

BATCH_ROWS = 500
DAY_MS = 24 * 3600 * 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of row.

    `walk` takes `after`, `before` and `limit`, and returns in the order of `id` up to `limit` rows behind
    `after`, each with `due` (0 or 1) and what `remove` needs. What is due stays due. `again`: a row may have
    more than one batch removes.
    """

    name: str
    keep_days: float
    """0: for ever."""
    walk: Statement
    remove: Sequence[Statement]
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Prune:
    kind: Kind
    rows: Sequence[Mapping[str, Value]]


@law("common.retention.prune", keys=lambda unit: (f"retention:{unit.kind.name}",))
async def prune(tx: Tx, unit: _Prune) -> None:
    for statement in unit.kind.remove:
        await tx.many(statement, unit.rows)


@final
class Retention:
    """Removes what is due of every kind. One batch a look, so that it never stands in anybody's way."""

    name = "retention"

    def __init__(
        self, ledger: Ledger, kinds: Sequence[Kind], *, clock: Clock, interval_seconds: float
    ) -> None:
        self.interval_seconds = interval_seconds
        self._ledger = ledger
        self._kinds = [kind for kind in kinds if kind.keep_days > 0]
        self._clock = clock
        self._at = 0
        self._after = ""
        self.removed: dict[str, int] = {}
        """How many rows of each kind this process found due."""

    async def run_once(self) -> bool:
        """One batch of one kind; True until all kinds were walked."""
        if not self._kinds:
            return False
        kind = self._kinds[self._at]
        rows = await self._found(kind)
        due = [row for row in rows if row["due"]]
        if due:
            names = {name for statement in kind.remove for name in statement.names}
            taken = [{name: row[name] for name in names} for row in due]
            await self._ledger.commit(prune, _Prune(kind, taken))
            self.removed[kind.name] = self.removed.get(kind.name, 0) + len(due)
        if due and kind.again:
            return True
        if len(rows) == BATCH_ROWS:
            self._after = str(rows[-1]["id"])
            return True
        self._after = ""
        self._at = (self._at + 1) % len(self._kinds)
        return self._at > 0

    async def _found(self, kind: Kind) -> Sequence[Row]:
        before = self._clock.now_ms() - int(kind.keep_days * DAY_MS)

        async def query(tx: Tx) -> Sequence[Row]:
            given: dict[str, Any] = {"after": self._after, "before": before, "limit": BATCH_ROWS}
            return await tx.all(kind.walk, **given)

        return await self._ledger.read(query)


HOSTS = sql(
    "select id, case when state = 'RELEASED' and released_at < :before then 1 else 0 end as due"
    " from host where id > :after order by id limit :limit"
)
REMOVE_HOST = (
    sql("delete from heartbeat where host = :id"),
    sql("delete from host where id = :id and state = 'RELEASED'"),
)
# Of one execution, several may wait: each is a row of the walk, found again until it is gone.
QUARANTINED = sql(
    "select execution as id, sequence, 1 as due from inbox"
    " where state = 'QUARANTINED' and received_at < :before and execution >= :after"
    " order by execution, sequence limit :limit"
)
REMOVE_QUARANTINED = (
    sql(
        "delete from inbox where execution = :id and sequence = :sequence and state = 'QUARANTINED'"
    ),
)


def common_kinds(*, hosts_days: float, quarantined_days: float) -> list[Kind]:
    """What every ledger has."""
    return [
        Kind(name="hosts", keep_days=hosts_days, walk=HOSTS, remove=REMOVE_HOST),
        Kind(
            name="quarantined",
            keep_days=quarantined_days,
            walk=QUARANTINED,
            remove=REMOVE_QUARANTINED,
            again=True,
        ),
    ]
