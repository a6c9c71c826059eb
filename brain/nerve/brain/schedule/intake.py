"""Updates from Hands on their way into the ledger: opened, committed, and only then acknowledged."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nerve.brain.ledger.deliver import Accepted, Deliver, Delivered, deliver
from nerve.brain.ledger.inquiries import NotFound, Patience, not_found
from nerve.brain.ledger.quarantine import SetAside, set_aside
from nerve.brain.ledger.seats import Stranger, meet
from nerve.brain.schedule.results import Results
from nerve.brain.schedule.scheduler import Notify, Reservation, Scheduler
from nerve.brain.tools.messages import Messages
from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.inbox import NotOurs, Refusal, refuse
from nerve.common.large import Large
from nerve.common.logs import get_log
from nerve.common.outbox import OutboxRow, Relay
from nerve.common.sql import Ledger
from nerve.protocol.envelope import Envelope, open_envelope
from nerve.protocol.errors import (
    BadInput,
    Damaged,
    NerveError,
    Refused,
    Unauthorized,
    Unavailable,
    WrongLedger,
)
from nerve.protocol.updates import (
    ExecutionUpdate,
    HelloUpdate,
    NotFoundUpdate,
    OutputPageUpdate,
    SnapshotUpdate,
)

_log = get_log("nerve.brain.intake")

faults.register("brain", ["brain.intake.received", "brain.intake.committed"])


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An envelope on its way into the ledger."""

    future: asyncio.Future[Delivered]
    envelope: Envelope


class Intake:
    """The sink of one Brain host: returns once every envelope of a group stands in the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        scheduler: Scheduler,
        *,
        host: str,
        messages: Messages,
        patience: Patience,
        relay: Relay,
        clock: Clock,
        notify: Notify,
        wake: Callable[[str], None],
        seat: str,
        pages: Callable[[OutputPageUpdate], None],
        large: Large | None = None,
        hello: Callable[[str, HelloUpdate], None] = lambda route, update: None,
    ) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._host = host
        self._messages = messages
        self._patience = patience
        self._relay = relay
        self._clock = clock
        self._notify = notify
        self._wake = wake
        self._seat = seat
        self._met: set[str] = set()
        self._pages = pages
        self._hello = hello
        self._results = Results(ledger, large, clock=clock)

    async def accept(self, raws: Sequence[bytes]) -> None:
        """Raises LedgerUnavailable, DiskFull or WrongLedger where nothing may be acknowledged, and
        NotOurs with what is meant for another ledger of this cell, where the rest stands.

        What only one envelope can be blamed for is set aside, and the others of its group go on.
        """
        await faults.apoint("brain.intake.received")
        now = self._clock.now_ms()
        small: list[Envelope] = []
        large: list[Envelope] = []
        foreign: list[Envelope] = []
        for raw in raws:
            envelope = await self._opened(raw, now)
            if envelope is None:
                continue
            if await self._is_foreign(envelope):
                foreign.append(envelope)
            else:
                elsewhere = self._results.stands_elsewhere(envelope)
                (large if elsewhere else small).append(envelope)
        await self._accept(small, now)
        # Each by itself and few at once: what a bundle refers to need not fit into memory together.
        work = [self._accept_large(each, now) for each in large]
        for failed in await asyncio.gather(*work, return_exceptions=True):
            if failed is not None:
                raise failed
        await faults.apoint("brain.intake.committed")
        if foreign:
            raise NotOurs([each.raw for each in foreign])

    async def again(self, raw: bytes) -> bool:
        """Take in an update that was held; False while what comes before it is missing.

        Raises as `accept`, and NerveError where it must wait on.
        """
        envelope = await self._results.fetched(open_envelope(raw))
        delivered = await self._accept([envelope], self._clock.now_ms())
        return not any(each.accepted is Accepted.HELD for each in delivered)

    async def _opened(self, raw: bytes, now: int) -> Envelope | None:
        try:
            envelope = open_envelope(raw)
            if not envelope.kind.is_update:
                raise _misplaced(envelope)
            return envelope
        except NerveError as error:
            await self._refuse(raw, error, now)
            return None

    async def _accept(self, envelopes: Sequence[Envelope], now: int) -> list[Delivered]:
        submitted = [self._submit(each, now) for each in envelopes]
        waiting = [each for each in submitted if each is not None]
        if waiting:
            await asyncio.wait([each.future for each in waiting])
        await self._take_in(waiting, now)
        return [each.future.result() for each in waiting if each.future.exception() is None]

    async def _accept_large(self, envelope: Envelope, now: int) -> None:
        async with self._results.room:
            try:
                whole = await self._results.fetched_or_held(envelope)
            except BadInput as error:
                await self._refuse(envelope.raw, error, now)
                return
            if whole is None:
                return
            delivered = await self._accept([whole], now)
            if all(each.accepted is not Accepted.HELD for each in delivered):
                await self._results.release(whole)

    async def _is_foreign(self, envelope: Envelope) -> bool:
        """Whether it names another seat than ours: a copy of this ledger asked for it."""
        seat = getattr(envelope.body, "seat", None)
        if seat is None or seat == self._seat:
            return False
        if seat not in self._met:
            self._met.add(seat)
            _log.error(
                "two ledgers share one cell: an update is meant for the other one",
                cause="seat",
                ours=self._seat,
                theirs=seat,
            )
            await self._ledger.commit(meet, Stranger(seat=seat))
        return True

    async def _take_in(self, waiting: Sequence[_Waiting], now: int) -> None:
        lost: BaseException | None = None
        for each in waiting:
            error = each.future.exception()
            if error is None:
                await self._go_on(each, each.future.result(), now)
            elif isinstance(error, (Unavailable, WrongLedger, Damaged, faults.InjectedFault)):
                lost = lost or error
            else:
                await self._set_aside(each.envelope, error, now)
        if lost is not None:
            raise lost

    def _submit(self, envelope: Envelope, now: int) -> _Waiting | None:
        body = envelope.body
        match body:
            case ExecutionUpdate() | SnapshotUpdate():
                self._messages.heard(envelope.route, body.ledger)
                slot = self._scheduler.reserve()
                unit = self._deliver(envelope, body, _offers(slot), now)
                return self._waiting(self._ledger.submit(deliver, unit), envelope, slot)
            case NotFoundUpdate():
                self._messages.heard(envelope.route, body.ledger)
                slot = self._scheduler.reserve()
                missing = NotFound(
                    update=body,
                    namespace=envelope.namespace,
                    envelope=envelope.raw,
                    messages=self._messages,
                    patience=self._patience,
                    host=self._host,
                    offers=_offers(slot),
                    relay=self._relay,
                    now=now,
                )
                return self._waiting(self._ledger.submit(not_found, missing), envelope, slot)
            case OutputPageUpdate():
                self._pages(body)
                return None
            case HelloUpdate():
                self._hello(envelope.route, body)
                return None
            case _:
                raise _misplaced(envelope)

    def _deliver(
        self,
        envelope: Envelope,
        update: ExecutionUpdate | SnapshotUpdate,
        offers: frozenset[str],
        now: int,
    ) -> Deliver:
        def replay(from_sequence: int) -> OutboxRow:
            return self._messages.replay(
                update.execution,
                envelope.route,
                envelope.namespace,
                from_sequence=from_sequence,
                now=now,
            )

        return Deliver(
            update=update,
            namespace=envelope.namespace,
            envelope=envelope.raw,
            host=self._host,
            offers=offers,
            replay=replay,
            relay=self._relay,
            silence_ms=self._patience.silence_ms,
            now=now,
        )

    def _waiting(
        self, future: asyncio.Future[Delivered], envelope: Envelope, slot: Reservation | None
    ) -> _Waiting:
        """What is claimed starts with its answer, whatever becomes of the one who handed it in."""

        def answered(future: asyncio.Future[Delivered]) -> None:
            if not future.cancelled() and future.exception() is None:
                self._start(future.result())
            if slot is not None:
                self._scheduler.end(slot)

        future.add_done_callback(answered)
        return _Waiting(future, envelope)

    def _start(self, delivered: Delivered) -> None:
        if delivered.claimed is not None:
            self._scheduler.start(delivered.claimed)
        elif delivered.ready and delivered.definition is not None:
            self._wake(delivered.definition)

    async def _go_on(self, each: _Waiting, delivered: Delivered, now: int) -> None:
        if delivered.turn is not None:
            self._notify(delivered.turn, False)
        if delivered.accepted is Accepted.STRANGER:
            stranger = Refused("an update of an execution that this Brain never asked for")
            await self._refuse(each.envelope.raw, stranger, now)
        elif delivered.accepted is Accepted.FOREIGN:
            foreign = Unauthorized(
                f"an update of {each.envelope.execution} names the namespace"
                f" {each.envelope.namespace}, and another one asked for it",
                where="namespace",
                next_step="look at the Hands that sent it; the call is asked about again",
            )
            _log.error("an update of another namespace was refused", cause="namespace")
            await self._refuse(each.envelope.raw, foreign, now)

    async def _set_aside(self, envelope: Envelope, error: BaseException, now: int) -> None:
        """An update that the ledger cannot take is kept for a person; Hands are asked afresh."""
        _log.error("an update was quarantined", cause="quarantine", error=error)
        unit = SetAside(
            execution=envelope.execution,
            sequence=envelope.sequence,
            envelope=envelope.raw,
            reason=f"{type(error).__name__}: {error}"[:1000],
            now=now,
        )
        await self._ledger.commit(set_aside, unit)

    async def _refuse(self, raw: bytes, error: NerveError, now: int) -> None:
        unit = Refusal(
            topic="updates", code=error.code, reason=str(error)[:1000], head=raw, now=now
        )
        await self._ledger.commit(refuse, unit)


def _misplaced(envelope: Envelope) -> Refused:
    return Refused(
        f"a {envelope.kind} does not belong on the way to a Brain",
        where="kind",
        next_step="send commands and controls to a Hands route",
    )


def _offers(slot: Reservation | None) -> frozenset[str]:
    return frozenset() if slot is None else slot.offers
