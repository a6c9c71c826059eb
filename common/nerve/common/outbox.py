"""Messages that leave after the transaction that decided them, and are forgotten after a confirm.

A row belongs to the host whose relay publishes it from memory, or to nobody. Whoever finds rows of
nobody, of a host that is not LIVE, or old ones of its own, publishes them again: receivers keep an
inbox, so a repeat is free and a row that waits for a dead host is the only thing that would be lost.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence

from nerve.common import faults
from nerve.common.clock import Clock, wait_event, within
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.record import record
from nerve.common.sql.law import Row, Tx, law
from nerve.common.sql.ledger import Ledger
from nerve.common.sql.statement import sql

Publish = Callable[[str, Sequence[bytes]], Awaitable[None]]
"""`publish(destination, envelopes)` returns after a confirm; the caller retries what it raises."""

_log = get_log("nerve.common.outbox")

SCAN_ROWS = 1000
WAITING_ROWS_MAX = 10_000
_START = (-1, "")

PUT = sql(
    "insert into outbox (id, destination, host, envelope, created_at)"
    " values (:id, :destination, :host, :envelope, :created_at) on conflict (id) do nothing"
)
FORGET = sql("delete from outbox where id = :id")
STRANDED = sql(
    "select id, destination, envelope, created_at from outbox where id in ("
    " select o.id from outbox o left join host h on h.id = o.host"
    " where (o.created_at, o.id) > (:after_at, :after_id) and (o.host is null or h.id is null"
    " or h.state <> 'LIVE' or (o.host = :host and not o.created_at between :before and :now))"
    " order by o.created_at, o.id limit :limit) order by created_at, id"
)
DEPTH = sql("select count(*) as depth, min(created_at) as oldest from outbox")

faults.register(
    "common",
    [
        "common.outbox.before_publish",
        "common.outbox.after_publish",
        "common.outbox.before_forget",
    ],
)


@record
class OutboxRow:
    """One message. `id` is made by the sender, `destination` says which publisher and topic."""

    id: str
    destination: str
    envelope: bytes


async def put(
    tx: Tx, rows: Sequence[OutboxRow], *, host: str | None, now: int, relay: "Relay | None"
) -> None:
    """Commit `rows` with the caller's transaction; afterwards `relay` has them without a look."""
    if not rows:
        return
    await tx.many(
        PUT,
        [
            {
                "id": row.id,
                "destination": row.destination,
                "host": host,
                "envelope": row.envelope,
                "created_at": now,
            }
            for row in rows
        ],
    )
    if relay is not None:
        tx.after(lambda: relay.hand_over(rows))


@law("common.outbox.forget", keys=lambda unit: ())
async def forget(tx: Tx, unit: Sequence[str]) -> None:
    """Drop what was confirmed."""
    await tx.many(FORGET, [{"id": each} for each in unit])


async def depth(tx: Tx) -> tuple[int, int | None]:
    """How many rows wait, and since when the oldest does (ms)."""
    row = await tx.one(DEPTH)
    assert row is not None
    return row["depth"], row["oldest"]


class Relay:
    """Publishes the outbox of one ledger: one task per destination, in order, in groups."""

    name = "outbox"

    def __init__(
        self,
        ledger: Ledger,
        publish: Publish,
        *,
        host: Callable[[], str | None],
        clock: Clock,
        resend_seconds: float = 5.0,
        scan_seconds: float = 1.0,
        group_max: int = 64,
        publish_seconds: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._publish = publish
        self._host = host
        self._clock = clock
        self._resend_ms = int(resend_seconds * 1000)
        self._group_max = group_max
        self._publish_seconds = publish_seconds
        self._backoff = backoff or Backoff()
        self._waiting: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._flying: set[str] = set()
        self._confirmed: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._after = _START
        self._closed = False
        self._draining = asyncio.Event()

    def hand_over(self, rows: Sequence[OutboxRow]) -> None:
        """Publish committed rows soon. Never blocks, never raises.

        While very many wait already, these stay in the ledger only, where a scan finds them.
        """
        if self._closed or self.depth() >= WAITING_ROWS_MAX:
            return
        for row in rows:
            if row.id not in self._flying:
                self._waiting[row.destination][row.id] = row.envelope
            if row.destination not in self._tasks:
                self._tasks[row.destination] = asyncio.get_running_loop().create_task(
                    self._drive(row.destination), name=f"outbox:{row.destination}"
                )

    def depth(self) -> int:
        """Rows handed over and not confirmed yet."""
        return len(self._flying) + sum(len(rows) for rows in self._waiting.values())

    async def run_once(self) -> bool:
        """Find rows that nobody is publishing, a page at a time, so that no route blocks another."""
        if self.depth() >= WAITING_ROWS_MAX:
            return False
        rows = await self._ledger.read(self._page)
        full = len(rows) == SCAN_ROWS
        self._after = (rows[-1]["created_at"], rows[-1]["id"]) if full else _START
        known = self._flying.union(*self._waiting.values(), self._lately_confirmed())
        fresh = [
            OutboxRow(id=row["id"], destination=row["destination"], envelope=row["envelope"])
            for row in rows
            if row["id"] not in known
        ]
        self.hand_over(fresh)
        return full and bool(fresh)

    def _lately_confirmed(self) -> Sequence[str]:
        """What is confirmed is forgotten a moment later; where that was lost, it is sent again."""
        before = self._clock.monotonic() - self._resend_ms / 1000
        self._confirmed = {id: at for id, at in self._confirmed.items() if at > before}
        return tuple(self._confirmed)

    async def _page(self, tx: Tx) -> Sequence[Row]:
        now = self._clock.now_ms()
        after_at, after_id = self._after
        return await tx.all(
            STRANDED,
            host=self._host() or "",
            before=now - self._resend_ms + 1,
            now=now,
            after_at=after_at,
            after_id=after_id,
            limit=SCAN_ROWS,
        )

    async def drain(self, seconds: float) -> bool:
        """Wait until everything handed over is confirmed; False where time ran out.

        From now on what cannot be published is not tried again: it stays for whoever scans next.
        """
        self._draining.set()
        tasks = list(self._tasks.values())
        if not tasks:
            return True
        await asyncio.wait(tasks, timeout=seconds)
        return not self.depth()

    async def close(self) -> None:
        """Stop. What is not confirmed stays in the ledger for whoever scans next."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _drive(self, destination: str) -> None:
        failures = 0
        try:
            while rows := self._take(destination):
                try:
                    await self._send(destination, rows)
                    failures = 0
                except Exception as error:
                    failures += 1
                    self._put_back(destination, rows)
                    _log.warning(
                        "publishing failed, it will be tried again",
                        cause=f"outbox:{destination}",
                        destination=destination,
                        error=error,
                    )
                    await wait_event(self._clock, self._draining, self._backoff.after(failures))
                    if self._draining.is_set():
                        return
        finally:
            self._tasks.pop(destination, None)

    def _take(self, destination: str) -> dict[str, bytes]:
        waiting = self._waiting[destination]
        taken = {each: waiting.pop(each) for each in list(waiting)[: self._group_max]}
        self._flying.update(taken)
        return taken

    def _put_back(self, destination: str, rows: dict[str, bytes]) -> None:
        self._flying.difference_update(rows)
        self._waiting[destination] = rows | self._waiting[destination]

    async def _send(self, destination: str, rows: dict[str, bytes]) -> None:
        await faults.apoint("common.outbox.before_publish")
        # A publish that never returns is sent again: whoever receives it twice finds it in its inbox.
        async with within(self._clock, self._publish_seconds):
            await self._publish(destination, list(rows.values()))
        await faults.apoint("common.outbox.after_publish")
        self._flying.difference_update(rows)
        self._confirmed |= dict.fromkeys(rows, self._clock.monotonic())
        faults.point("common.outbox.before_forget")
        self._ledger.defer(forget, tuple(rows))
