"""A Thread that waits for nothing is woken: the law says it cannot happen, and a scan makes sure."""

from nerve.common.sql import Tx, law, sql

STUCK = sql(
    "select h.id from turn t join thread h on h.id = t.thread"
    " where t.phase in ('WAITING', 'SETTLING') and t.open_count = 0 and t.pause_intent = 0"
    " and h.phase = 'WAITING' and h.head = t.id limit 100"
)
WAKE = sql(
    "update thread set phase = 'READY', ready_at = :now where id = :id and phase = 'WAITING'"
)


async def stuck(tx: Tx) -> list[str]:
    """WAITING Threads whose head has nothing open."""
    return [row["id"] for row in await tx.all(STUCK)]


@law("brain.wake_idle_waiters", keys=lambda unit: ("repair",))
async def wake_idle_waiters(tx: Tx, unit: int) -> int:
    """Make them READY at `unit` (ms); returns how many there were."""
    threads = await stuck(tx)
    for thread in threads:
        await tx.run(WAKE, id=thread, now=unit)
    return len(threads)
