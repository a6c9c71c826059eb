"""What arrived: acknowledged once each envelope stands in the ledger, in one state or another.

An envelope is applied at once, or HELD (something before it is missing) with a next try, or
QUARANTINED for a person. What cannot be read at all, or was not authorized, goes to the bounded
`refused` table. One bad envelope never brings back the good ones of its bundle.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from nerve.common import faults
from nerve.common.broker.port import Consumer, Delivery
from nerve.common.clock import Clock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.sql.law import Row, Tx, law
from nerve.common.sql.ledger import Ledger
from nerve.common.sql.statement import sql
from nerve.protocol.envelope import unbundle
from nerve.protocol.errors import NerveError

_log = get_log("nerve.common.inbox")

REFUSED_ROWS_MAX = 10_000
HEAD_BYTES = 512
REASON_MAX = 1000
ASIDE_SECONDS = 0.5

HOLD = sql(
    "insert into inbox (execution, sequence, state, reason, envelope, tries, next_at, received_at)"
    " values (:execution, :sequence, 'HELD', :reason, :envelope, 0, :next_at, :now)"
    " on conflict (execution, sequence) do nothing"
)
HELD = sql(
    "select sequence, envelope from inbox where execution = :execution and state = 'HELD'"
    " order by sequence"
)
DUE = sql(
    "select execution, sequence, envelope, tries, reason from inbox"
    " where state = 'HELD' and next_at <= :now order by next_at limit :limit"
)
RETRY = sql(
    "update inbox set tries = tries + 1, next_at = :next_at where execution = :execution"
    " and sequence = :sequence and state = 'HELD' and tries = :tries"
)
UNCOUNT = sql(
    "update inbox set tries = tries - 1, reason = :reason"
    " where execution = :execution and sequence = :sequence and state = 'HELD' and tries > 0"
)
SET_ASIDE = sql(
    "update inbox set state = 'QUARANTINED', reason = :reason"
    " where execution = :execution and sequence = :sequence and state = 'HELD'"
)
DONE = sql(
    "delete from inbox where execution = :execution and sequence = :sequence and state = :state"
)
KEPT = sql(
    "select execution, sequence, state, reason, envelope, tries, next_at, received_at from inbox"
    " where execution = :execution order by sequence"
)
QUARANTINED = sql(
    "select execution, sequence, state, reason, envelope, tries, next_at, received_at from inbox"
    " where state = 'QUARANTINED' order by received_at, execution, sequence limit :limit"
)
REPLAY = sql(
    "update inbox set state = 'HELD', tries = 0, next_at = :now"
    " where execution = :execution and state = 'QUARANTINED'"
)
DROP = sql("delete from inbox where execution = :execution and state = 'QUARANTINED'")
QUARANTINE = sql(
    "insert into inbox (execution, sequence, state, reason, envelope, tries, next_at, received_at)"
    " values (:execution, :sequence, 'QUARANTINED', :reason, :envelope, 0, 0, :now)"
    " on conflict (execution, sequence) do update"
    " set state = 'QUARANTINED', reason = excluded.reason"
)
RELEASE = sql("delete from inbox where execution = :execution and sequence <= :sequence")
REFUSE = sql(
    "insert into refused (received_at, topic, code, reason, head)"
    " values (:now, :topic, :code, :reason, :head)"
)
TRIM = sql("delete from refused where id <= (select max(id) from refused) - :keep")

faults.register(
    "common",
    ["common.inbox.received", "common.inbox.before_ack", "common.inbox.after_ack"],
)


async def hold(
    tx: Tx, *, execution: str, sequence: int, envelope: bytes, reason: str, next_at: int, now: int
) -> None:
    """Keep an envelope whose turn has not come. Holding it again changes nothing."""
    await tx.run(
        HOLD,
        execution=execution,
        sequence=sequence,
        envelope=envelope,
        reason=reason,
        next_at=next_at,
        now=now,
    )


async def held(tx: Tx, execution: str) -> Sequence[Row]:
    """(sequence, envelope) of what is held for one execution, in order."""
    return await tx.all(HELD, execution=execution)


async def due(tx: Tx, *, now: int, limit: int) -> Sequence[Row]:
    """Held envelopes whose next try has come."""
    return await tx.all(DUE, now=now, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One try of a held envelope that had `tries` before."""

    execution: str
    sequence: int
    tries: int
    next_at: int = 0
    reason: str = ""


@law("common.inbox.begin_try", keys=lambda unit: (unit.execution,))
async def begin_try(tx: Tx, unit: Try) -> bool:
    """Count a try, before it is made: an envelope that kills its host is counted too.

    False where another host makes it, or it is held no more.
    """
    return bool(
        await tx.run(
            RETRY,
            execution=unit.execution,
            sequence=unit.sequence,
            tries=unit.tries,
            next_at=unit.next_at,
        )
    )


@law("common.inbox.uncount", keys=lambda unit: (unit.execution,))
async def uncount(tx: Tx, unit: Try) -> None:
    """The try told nothing about the envelope: what it needs was out of reach."""
    await tx.run(
        UNCOUNT, execution=unit.execution, sequence=unit.sequence, reason=unit.reason[:REASON_MAX]
    )


@law("common.inbox.give_up", keys=lambda unit: (unit.execution,))
async def give_up(tx: Tx, unit: Try) -> None:
    """It was tried often enough: from here on it waits for a person."""
    await tx.run(
        SET_ASIDE, execution=unit.execution, sequence=unit.sequence, reason=unit.reason[:REASON_MAX]
    )


@law("common.inbox.done", keys=lambda unit: (unit.execution,))
async def done(tx: Tx, unit: Try) -> None:
    """It stands where it belongs, whatever state it was kept in."""
    for state in ("HELD", "QUARANTINED"):
        await tx.run(DONE, execution=unit.execution, sequence=unit.sequence, state=state)


@law("common.inbox.replay", keys=lambda unit: (unit.execution,))
async def replay(tx: Tx, unit: Try) -> int:
    """A person wants it tried again from `next_at` on; how many envelopes that are."""
    return await tx.run(REPLAY, execution=unit.execution, now=unit.next_at)


@law("common.inbox.drop", keys=lambda unit: (unit.execution,))
async def drop(tx: Tx, unit: Try) -> int:
    """A person gives it up; how many envelopes that are."""
    return await tx.run(DROP, execution=unit.execution)


async def kept(tx: Tx, execution: str) -> Sequence[Row]:
    """What is held or quarantined of one execution."""
    return await tx.all(KEPT, execution=execution)


async def quarantined(tx: Tx, limit: int) -> Sequence[Row]:
    """The oldest of what waits for a person."""
    return await tx.all(QUARANTINED, limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """An envelope that is kept until what it needs is there."""

    execution: str
    sequence: int
    envelope: bytes
    reason: str
    next_at: int
    now: int


@law("common.inbox.hold", keys=lambda unit: (unit.execution,))
async def keep_back(tx: Tx, unit: Hold) -> None:
    """Hold it; one that is held or quarantined already stays as it is."""
    await hold(
        tx,
        execution=unit.execution,
        sequence=unit.sequence,
        envelope=unit.envelope,
        reason=unit.reason[:REASON_MAX],
        next_at=unit.next_at,
        now=unit.now,
    )


async def quarantine(
    tx: Tx, *, execution: str, sequence: int, envelope: bytes, reason: str, now: int
) -> None:
    """Set an envelope aside where an operator sees it."""
    await tx.run(
        QUARANTINE,
        execution=execution,
        sequence=sequence,
        envelope=envelope,
        reason=reason,
        now=now,
    )


async def release(tx: Tx, *, execution: str, sequence: int) -> None:
    """Forget what is held up to `sequence`: it was applied, or something newer covers it."""
    await tx.run(RELEASE, execution=execution, sequence=sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What could not be accepted, without its contents beyond the first bytes."""

    topic: str
    code: str
    reason: str
    head: bytes
    now: int


@law("common.inbox.refuse", keys=lambda unit: ())
async def refuse(tx: Tx, unit: Refusal) -> None:
    """Record a refusal; the oldest ones go when there are too many."""
    await tx.run(
        REFUSE,
        now=unit.now,
        topic=unit.topic,
        code=unit.code,
        reason=unit.reason,
        head=unit.head[:HEAD_BYTES],
    )
    await tx.run(TRIM, keep=REFUSED_ROWS_MAX)


class NotOurs(Exception):
    """Everything of a group was accepted, except these envelopes: they are meant for somebody else who
    reads the same queue, and are neither acknowledged nor kept."""

    def __init__(self, envelopes: Sequence[bytes]) -> None:
        super().__init__(f"{len(envelopes)} messages are meant for another receiver")
        self.envelopes = frozenset(envelopes)


class InboxLoop:
    """Consumer, `accept`, acknowledgement: in this order, for ever."""

    def __init__(
        self,
        consumer: Consumer,
        accept: Callable[[Sequence[bytes]], Awaitable[None]],
        ledger: Ledger,
        *,
        clock: Clock,
        backoff: Backoff | None = None,
    ) -> None:
        self._consumer = consumer
        self._accept = accept
        self._ledger = ledger
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="inbox")

    def poke(self) -> None:
        """There is room again."""
        self._consumer.poke()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._consumer.close()

    async def _run(self) -> None:
        failures = 0
        while True:
            deliveries: Sequence[Delivery] = ()
            try:
                deliveries = await self._consumer.receive()
                await self._handle(deliveries)
                failures = 0
            except Exception as error:
                failures += 1
                self._consumer.nack(deliveries)
                _log.warning(
                    "arrived messages could not be kept, they will come again",
                    cause="inbox",
                    error=error,
                )
                await self._clock.sleep(self._backoff.after(failures))

    async def _handle(self, deliveries: Sequence[Delivery]) -> None:
        await faults.apoint("common.inbox.received")
        envelopes: list[bytes] = []
        for delivery in deliveries:
            try:
                envelopes += unbundle(delivery.body)
            except NerveError as error:
                await self._refuse(delivery, error)
        try:
            if envelopes:
                await self._accept(envelopes)
        except NotOurs as error:
            foreign = [each for each in deliveries if error.envelopes & {*unbundle(each.body)}]
            deliveries = [each for each in deliveries if each not in foreign]
            self._consumer.ack(deliveries)
            self._consumer.nack(foreign)
            # Whoever gives something back is the first to see it again: it steps aside for the others.
            await self._clock.sleep(ASIDE_SECONDS)
            return
        await faults.apoint("common.inbox.before_ack")
        self._consumer.ack(deliveries)
        await faults.apoint("common.inbox.after_ack")

    async def _refuse(self, delivery: Delivery, error: NerveError) -> None:
        await self._ledger.commit(
            refuse,
            Refusal(
                topic=delivery.topic,
                code=error.code,
                reason=error.message,
                head=delivery.body,
                now=self._clock.now_ms(),
            ),
        )
