"""Due times that lie further ahead than any delay may be: a clock that was set back left them there.

Due times are wall time, since they outlive processes. A host whose clock was an hour fast, or that
lost an hour, would else leave everything that was ready to wait for that hour.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from nerve.common.sql import ALONE, Row, Tx, law, sql

TOLERANCE_MS = 1_000

# The latest first: what was left behind lies beyond what merely waits for its next try.
READY_LATER = sql(
    "select h.id, h.ready_at, t.retry_at, t.retry_policy from thread h join turn t on t.id = h.head"
    " where h.definition = :definition and h.phase = 'READY' and h.ready_at > :soon"
    " order by h.ready_at desc limit 100"
)
ANY_INQUIRY = sql("select 1 from intent where next_inquiry_at > :latest limit 1")
READY_NOW = sql(
    "update thread set ready_at = :now where id = :id and phase = 'READY' and ready_at = :seen"
)
INQUIRE_NOW = sql("update intent set next_inquiry_at = :now where next_inquiry_at > :latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Threads with the `ready_at` they had, and the latest time at which a question may be due."""

    threads: Sequence[tuple[str, int]]
    latest: int
    now: int


async def find(
    tx: Tx, *, definitions: Sequence[str], delay_ms: int, latest: int, now: int
) -> Ahead | None:
    """What is due too late; `delay_ms` is the longest that a host delays a Thread by itself."""
    threads = [
        (row["id"], row["ready_at"])
        for definition in definitions
        for row in await tx.all(READY_LATER, definition=definition, soon=now + TOLERANCE_MS)
        if row["ready_at"] > now + _longest_ms(row, delay_ms) + TOLERANCE_MS
    ]
    inquiries = await tx.one(ANY_INQUIRY, latest=latest) is not None
    return Ahead(threads=threads, latest=latest, now=now) if threads or inquiries else None


def _longest_ms(row: Row, delay_ms: int) -> int:
    if row["retry_at"] is None:
        return 0
    if row["retry_policy"] is None:
        return delay_ms
    return max(delay_ms, int(orjson.loads(row["retry_policy"])["most_seconds"] * 1000))


@law("brain.pull_ahead", keys=lambda unit: ("ahead", ALONE))
async def pull(tx: Tx, unit: Ahead) -> None:
    """Make it due now. What changed meanwhile is left as it is."""
    for thread, seen in unit.threads:
        await tx.run(READY_NOW, id=thread, seen=seen, now=unit.now)
    await tx.run(INQUIRE_NOW, latest=unit.latest, now=unit.now)
