"""A Thread that waits for nothing is woken: the law says it cannot happen, and a scan makes sure."""

from nerve.common.sql import ALONE, Tx, law, sql

STUCK = sql(
    "select h.id from turn t join thread h on h.id = t.thread"
    " where t.phase in ('WAITING', 'SETTLING') and t.open_count = 0 and t.pause_intent = 0"
    " and h.phase = 'WAITING' and h.head = t.id limit 100"
)
LOCK_STUCK = sql(
    "select h.id from turn t join thread h on h.id = t.thread join session s on s.id = h.session"
    " where t.phase in ('WAITING', 'SETTLING') and t.open_count = 0 and t.pause_intent = 0"
    " and h.phase = 'WAITING' and h.head = t.id limit 100 for update of s, h, t skip locked"
)
WAKE = sql(
    "update thread set phase = 'READY', ready_at = :now where id = :id and phase = 'WAITING'"
)


async def stuck(tx: Tx) -> list[str]:
    """WAITING Threads whose head has nothing open."""
    return [row["id"] for row in await tx.all(STUCK)]


@law("brain.wake_idle_waiters", keys=lambda unit: ("repair", ALONE))
async def wake_idle_waiters(tx: Tx, unit: int) -> int:
    """Make them READY at `unit` (ms); returns how many there were."""
    threads = [row["id"] for row in await tx.all(LOCK_STUCK)]
    for thread in threads:
        await tx.run(WAKE, id=thread, now=unit)
    return len(threads)
