"""Who owns work: one incarnation per process and ledger, with a lock that dies with it.

The row in `host` is the authority: what gives ownership requires it to be LIVE in the same
transaction, and releasing it is final and takes everything from it in one transaction. Lock and
heartbeat only tell others when to release, and a mistake of theirs costs truthfulness about a tool
(UNKNOWN), never a second effect:

    process seen gone                     release now
    lock free, heartbeat fresh            Brain: release now; Hands: after a grace
    lock held or not to be seen           release when the heartbeat stood still for the lease

The heartbeat is a counter, not a time. An observer measures how long it stood still on its own
monotonic clock and over several of its own looks, so that no stepped clock and no suspended machine
takes anything away; it counts no time in which it was frozen itself, and none in which nobody could
have written. It beats from a thread, because a tool may block the event loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from nerve.common import process
from nerve.common.clock import Clock
from nerve.common.hostview import HostView, mark_of, view_of
from nerve.common.liveness import Lifeline, Liveness, LockSight
from nerve.common.logs import get_log
from nerve.common.settings import Settings
from nerve.common.sql.law import ALONE, Row, Tx, law
from nerve.common.sql.ledger import Ledger
from nerve.common.sql.statement import sql
from nerve.protocol.identity import new_uuid7

_log = get_log("nerve.common.lease")

LOOKS_MIN = 4
# Of the time between two looks, no more counts: who was frozen meanwhile has seen nothing of it.
STEP_SECONDS_MAX = 1.0
STEP_SWEEPS_MAX = 4

REGISTER = sql(
    "insert into host (id, state, role, pid, process_started, boot, offers, lease_ms, registered_at)"
    " values (:id, 'LIVE', :role, :pid, :started, :boot, :offers, :lease_ms, :now)"
)
FIRST_BEAT = sql("insert into heartbeat (host, counter) values (:id, 0)")
LIVE = sql("select 1 from host where id = :id and state = 'LIVE' for share")
DRAIN = sql("update host set state = 'DRAINING' where id = :id and state = 'LIVE'")
RELEASE = sql(
    "update host set state = 'RELEASED', released_at = :now where id = :id and state <> 'RELEASED'"
)
FREE_OUTBOX = sql("update outbox set host = null where host = :id")
OTHERS = sql(
    "select h.*, b.counter from host h join heartbeat b on b.host = h.id"
    " where h.state <> 'RELEASED' and h.id <> :id"
)

Also = Callable[[Tx, str, int], Awaitable[None]]
"""What a room does inside the releasing transaction: `also(tx, incarnation, now)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What an observer knows of another host."""

    lock: LockSight
    gone: bool
    still_seconds: float
    looks: int
    lock_lost_seconds: float


def dead(sight: Sight, *, lease_seconds: float, grace_seconds: float) -> bool:
    """Whether to release a host that looks like `sight` (`grace_seconds` is 0 for a Brain)."""
    if sight.gone:
        return True
    if sight.still_seconds >= lease_seconds and sight.looks >= LOOKS_MIN:
        return True
    return sight.lock is LockSight.FREE and sight.lock_lost_seconds >= grace_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Register:
    id: str
    role: str
    mark: process.ProcessMark
    offers: str
    lease_ms: int
    now: int


@law("common.lease.register", keys=lambda unit: (unit.id,))
async def register(tx: Tx, unit: _Register) -> None:
    await tx.run(
        REGISTER,
        id=unit.id,
        role=unit.role,
        pid=unit.mark.pid,
        started=unit.mark.started,
        boot=unit.mark.place,
        offers=unit.offers,
        lease_ms=unit.lease_ms,
        now=unit.now,
    )
    await tx.run(FIRST_BEAT, id=unit.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    host: str
    now: int
    also: Also


@law("common.lease.release", keys=lambda unit: (unit.host, ALONE))
async def release(tx: Tx, unit: Release) -> bool:
    """Take everything from an incarnation, for ever; False where somebody already did."""
    if not await tx.run(RELEASE, id=unit.host, now=unit.now):
        return False
    await tx.run(FREE_OUTBOX, id=unit.host)
    await unit.also(tx, unit.host, unit.now)
    return True


@law("common.lease.drain", keys=lambda unit: (unit,))
async def drain(tx: Tx, unit: str) -> None:
    await tx.run(DRAIN, id=unit)


async def require_live(tx: Tx, host: str) -> bool:
    """Whether `host` may be given anything, inside the transaction that would give it."""
    return await tx.one(LIVE, id=host) is not None


class Host:
    """This process as one incarnation in one ledger."""

    def __init__(self, id: str, lifeline: Lifeline, clock: Clock, settings: Settings) -> None:
        self.id = id
        self._clock = clock
        self._lifeline = lifeline
        self._lease_seconds = settings.lease_seconds
        self._interval_seconds = settings.heartbeat_seconds
        self._deadline = 0.0
        self._beaten = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self.lost = asyncio.Event()
        """Set when another host has released this incarnation: nothing it commits passes any more."""
        self.on_lost: list[Callable[[], None]] = []
        self.released = False
        """It gave everything back by itself."""
        self.beat_late_seconds = 0.0

    def alive(self) -> bool:
        """Whether nobody can have released this host yet, by its own monotonic clock.

        Look just before doing what cannot be undone: a process that was frozen may wake up here.
        """
        return not self.lost.is_set() and self._clock.monotonic() < self._deadline

    def beating(self) -> bool:
        """Whether this host could write lately: if not, others could not either."""
        return self._clock.monotonic() - self._beaten < 2 * self._interval_seconds + 1.0

    async def drop_lock(self) -> None:
        await self._lifeline.drop()

    def start_beating(self) -> None:
        self._beaten = self._clock.monotonic()
        self._deadline = self._beaten + self._lease_seconds
        self._thread = threading.Thread(target=self._beat, name="nerve-heartbeat", daemon=True)
        self._thread.start()

    async def stop_beating(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _beat(self) -> None:
        wait = self._interval_seconds
        while not self._stop.wait(wait):
            began = self._clock.monotonic()
            wait = self._interval_seconds
            try:
                if not self._lifeline.beat():
                    self._tell_lost()
                    break
                self._beaten = self._clock.monotonic()
                self._deadline = began + self._lease_seconds
                self.beat_late_seconds = self._beaten - began
            except Exception as error:
                wait = min(1.0, self._interval_seconds)
                self.beat_late_seconds = (
                    self._clock.monotonic() - self._deadline + self._lease_seconds
                )
                _log.warning("a heartbeat could not be written", cause="heartbeat", error=error)
        self._lifeline.hang_up()

    def _tell_lost(self) -> None:
        # A loop that was closed meanwhile has nobody to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lose)

    def _lose(self) -> None:
        if self.lost.is_set() or self._stop.is_set() or self.released:
            return
        self.lost.set()
        _log.error("this host was released by another one; it stops owning anything", host=self.id)
        for callback in self.on_lost:
            callback()


@dataclass(slots=True)
class _Seen:
    """What this observer counted itself: seconds of stillness, and of a lock that is free."""

    counter: int
    looked: float
    still: float = 0.0
    looks: int = 0
    lock_lost: float = 0.0


class Hosts:
    """The hosts of one ledger: registers this process, and releases those that died."""

    name = "hosts"

    def __init__(
        self,
        ledger: Ledger,
        liveness: Liveness,
        *,
        role: str,
        clock: Clock,
        settings: Settings,
        also: Also,
        grace_seconds: float = 0.0,
        on_release: Callable[[str], None] | None = None,
    ) -> None:
        self.interval_seconds = settings.sweep_seconds
        self._ledger = ledger
        self._liveness = liveness
        self._role = role
        self._clock = clock
        self._settings = settings
        self._also = also
        self._grace_seconds = grace_seconds
        self._on_release = on_release
        self._seen: dict[str, _Seen] = {}
        self.host: Host | None = None

    async def register(self, offers: Mapping[str, Any]) -> Host:
        """Become a LIVE incarnation. The lock is held before the row can be seen."""
        now = self._clock.now_ms()
        id = new_uuid7(now)
        host = Host(id, await self._liveness.take(id), self._clock, self._settings)
        unit = _Register(
            id=id,
            role=self._role,
            mark=process.own(),
            offers=orjson.dumps(offers).decode(),
            lease_ms=int(self._settings.lease_seconds * 1000),
            now=now,
        )
        try:
            await self._ledger.commit(register, unit)
        except BaseException:
            await host.drop_lock()
            raise
        host.start_beating()
        self.host = host
        return host

    async def drain(self) -> None:
        """Own what is owned, take nothing new."""
        if self.host is not None:
            await self._ledger.commit(drain, self.host.id)

    async def close(self) -> None:
        """Give everything back, for ever; the heartbeat is the last thing that stops."""
        host = self.host
        if host is None:
            return
        host.released = True
        try:
            await self._release(host.id)
        finally:
            self.host = None
            await host.stop_beating()
            await host.drop_lock()

    async def run_once(self) -> bool:
        """Look at every other host once and release those that are dead."""
        me = self.host.id if self.host is not None else ""

        async def query(tx: Tx) -> list[Row]:
            return list(await tx.all(OTHERS, id=me))

        rows = await self._ledger.read(query)
        locks: Mapping[str, LockSight] = {}
        if rows:
            locks = await self._liveness.look([row["id"] for row in rows])
        for row in rows:
            if self._dead(row, locks[row["id"]]):
                await self._release(row["id"])
        known = {row["id"] for row in rows}
        for id in self._seen.keys() - known:
            del self._seen[id]
        return False

    async def live(self) -> list[HostView]:
        """Every host that is not released, with what can be seen of it."""

        async def query(tx: Tx) -> list[Row]:
            return list(await tx.all(OTHERS, id=""))

        rows = await self._ledger.read(query)
        locks = await self._liveness.look([row["id"] for row in rows])
        writer = self._liveness.writer()
        return [view_of(row, locks[row["id"]], writer) for row in rows]

    async def _release(self, id: str) -> None:
        released = await self._ledger.commit(
            release, Release(host=id, now=self._clock.now_ms(), also=self._also)
        )
        if released and (self.host is None or id != self.host.id):
            self._liveness.forget(id)
            _log.warning("released a dead host", host=id, role=self._role)
        if released and self._on_release is not None:
            self._on_release(id)

    def _can_tell(self) -> bool:
        """While this host cannot write either, a heartbeat that stands still says nothing."""
        return self.host is None or self.host.beating()

    def _dead(self, row: Row, lock: LockSight) -> bool:
        now = self._clock.monotonic()
        seen = self._seen.setdefault(row["id"], _Seen(row["counter"], now))
        most = max(STEP_SECONDS_MAX, STEP_SWEEPS_MAX * self.interval_seconds)
        passed = min(now - seen.looked, most) if self._can_tell() else 0.0
        seen.looked = now
        if seen.counter != row["counter"]:
            seen.counter, seen.still, seen.looks, passed = row["counter"], 0.0, 0, 0.0
        seen.still += passed
        seen.looks += 1
        seen.lock_lost = seen.lock_lost + passed if lock is LockSight.FREE else 0.0
        sight = Sight(
            lock=lock,
            gone=lock is not LockSight.HELD
            and process.proven_gone(mark_of(row), one_machine=self._ledger.one_machine),
            still_seconds=seen.still,
            looks=seen.looks,
            lock_lost_seconds=seen.lock_lost,
        )
        return dead(sight, lease_seconds=row["lease_ms"] / 1000, grace_seconds=self._grace_seconds)
