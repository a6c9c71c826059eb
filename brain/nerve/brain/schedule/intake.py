"""Updates from Hands on their way into the ledger: opened, committed, and only then acknowledged."""

import asyncio
from collections.abc import Callable, Sequence

from nerve.brain.ledger.deliver import Accepted, Deliver, Delivered, deliver
from nerve.brain.ledger.inquiries import NotFound, Patience, not_found
from nerve.brain.schedule.scheduler import Notify, Scheduler
from nerve.brain.tools.messages import Messages
from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.inbox import Refusal, refuse
from nerve.common.outbox import Relay
from nerve.common.sql import Ledger
from nerve.protocol.envelope import Envelope, open_envelope
from nerve.protocol.errors import NerveError, Refused
from nerve.protocol.updates import (
    ExecutionUpdate,
    NotFoundUpdate,
    OutputPageUpdate,
    SnapshotUpdate,
)

faults.register("brain", ["brain.intake.received", "brain.intake.committed"])


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
        pages: Callable[[OutputPageUpdate], None],
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
        self._pages = pages

    async def accept(self, raws: Sequence[bytes]) -> None:
        """Raises LedgerUnavailable or DiskFull where nothing may be acknowledged."""
        await faults.apoint("brain.intake.received")
        now = self._clock.now_ms()
        waiting: list[asyncio.Future[Delivered]] = []
        for raw in raws:
            try:
                future = self._submit(open_envelope(raw), now)
            except NerveError as error:
                await self._refuse(raw, error, now)
                continue
            if future is not None:
                waiting.append(future)
        strangers = 0
        for future in waiting:
            delivered = await future
            strangers += delivered.accepted is Accepted.STRANGER
            self._go_on(delivered)
        await faults.apoint("brain.intake.committed")
        if strangers:
            stranger = Refused(f"{strangers} updates of executions that this Brain never asked for")
            await self._refuse(b"", stranger, now)

    def _submit(self, envelope: Envelope, now: int) -> asyncio.Future[Delivered] | None:
        body = envelope.body
        match body:
            case ExecutionUpdate() | SnapshotUpdate():
                self._messages.heard(envelope.route, body.ledger)
                return self._ledger.submit(deliver, self._deliver(envelope, body, now))
            case NotFoundUpdate():
                self._messages.heard(envelope.route, body.ledger)
                unit = NotFound(
                    update=body,
                    envelope=envelope.raw,
                    messages=self._messages,
                    patience=self._patience,
                    host=self._host,
                    offers=self._scheduler.offers,
                    relay=self._relay,
                    now=now,
                )
                return self._ledger.submit(not_found, unit)
            case OutputPageUpdate():
                self._pages(body)
                return None
            case _:
                raise Refused(
                    f"a {envelope.kind} does not belong on the way to a Brain",
                    where="kind",
                    next_step="send commands and controls to a Hands route",
                )

    def _deliver(
        self, envelope: Envelope, update: ExecutionUpdate | SnapshotUpdate, now: int
    ) -> Deliver:
        replay = None
        if update.sequence > 1:
            replay = self._messages.replay(
                update.execution, envelope.route, envelope.namespace, from_sequence=1, now=now
            )
        return Deliver(
            update=update,
            envelope=envelope.raw,
            host=self._host,
            offers=self._scheduler.offers,
            replay=replay,
            relay=self._relay,
            silence_ms=self._patience.silence_ms,
            now=now,
        )

    def _go_on(self, delivered: Delivered) -> None:
        if delivered.claimed is not None:
            self._scheduler.start(delivered.claimed)
        elif delivered.ready and delivered.definition is not None:
            self._wake(delivered.definition)
        if delivered.turn is not None:
            self._notify(delivered.turn, False)

    async def _refuse(self, raw: bytes, error: NerveError, now: int) -> None:
        unit = Refusal(
            topic="updates", code=error.code, reason=str(error)[:1000], head=raw, now=now
        )
        await self._ledger.commit(refuse, unit)
