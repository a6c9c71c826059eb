"""The laws of a Brain ledger, one by one, as a host would commit them: for tests of the laws alone."""

from dataclasses import replace
from typing import Any

from nerve.brain.handles import Session
from nerve.brain.harness import Definition
from nerve.brain.ledger.advance import advance
from nerve.brain.ledger.backend import SessionBackend
from nerve.brain.ledger.cancel import Cancel, Cancelled, cancel
from nerve.brain.ledger.claim import Claim, Claimed, claim, release_threads
from nerve.brain.ledger.definitions import definition_id
from nerve.brain.ledger.deliver import Deliver, Delivered, deliver
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.step_unit import (
    SETTLE,
    Advance,
    NewCheckpoint,
    NewIntent,
    Next,
    Place,
    Verdict,
)
from nerve.brain.schedule import outcome as made
from nerve.brain.state.checkpoint import chained
from nerve.brain.state.turn import Settle, settled_as
from nerve.brain.tools.messages import Messages
from nerve.common.lease import Host, Hosts
from nerve.common.outbox import OutboxRow
from nerve.common.settings import Settings
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.content import Message
from nerve.protocol.envelope import open_envelope
from nerve.protocol.identity import execution_id
from nerve.protocol.updates import ExecutionUpdate, SnapshotUpdate
from support.brain_cell import QUICK

DEFINITION = Definition(agent="agent", version="1", harness="function", state_version="1")
ID = definition_id(DEFINITION)


class Desk:
    """One process over the ledger, without a scheduler: each law is called by hand."""

    def __init__(self, backend: SessionBackend, settings: Settings = QUICK) -> None:
        self.backend = backend
        self.ledger = backend.ledger
        self.hosts = Hosts(
            backend.ledger,
            backend.liveness,
            role="brain",
            clock=backend.clock,
            settings=settings,
            also=release_threads,
        )
        self.messages = Messages(
            deployment="local", cell=backend.ledger.identity.id, admit_within_ms=60_000
        )

    @property
    def host(self) -> Host:
        assert self.hosts.host is not None
        return self.hosts.host

    def now(self) -> int:
        return self.backend.clock.now_ms()

    async def open(self, definition: str) -> "Desk":
        await self.hosts.register({"definitions": [definition]})
        return self

    async def claim(self, definition: str, *, limit: int = 100) -> list[Claimed]:
        unit = Claim(host=self.host.id, definition=definition, limit=limit, now=self.now())
        return await self.ledger.commit(claim, unit)

    def place(self, claimed: Claimed, *, step: int = 1) -> Place:
        return made.place(claimed, host=self.host.id, step=step, phase="ADVANCE")

    def checkpoint(self, claimed: Claimed) -> NewCheckpoint:
        entries, state = b'["said"]', b"{}"
        return NewCheckpoint(
            position=claimed.position + 1,
            entries=entries,
            state=state,
            digest=chained(claimed.digest, entries, state),
        )

    def unit(self, claimed: Claimed, next: Next, **said: Any) -> Advance:
        """An advance of a claimed Thread that applies what it received."""
        return Advance(
            at=self.place(claimed),
            next=next,
            now=self.now(),
            checkpoint=self.checkpoint(claimed),
            calls=said.pop("calls", claimed.calls),
            said=claimed.said,
            applied=[each.execution for each in claimed.unapplied if each.state == "RECEIVED"],
            **said,
        )

    async def finish(self, claimed: Claimed) -> Verdict:
        """End the Turn with "done"."""
        output = Message.assistant("done")
        told = NewEvent(
            type="message.completed",
            thread=claimed.thread,
            turn=claimed.turn,
            said=(f"{claimed.turn}.m1", output),
        )
        ended = NewEvent(type="turn.completed", thread=claimed.thread, turn=claimed.turn)
        unit = self.unit(
            claimed,
            Next.FINISH,
            output=canonical_bytes(output.to_json()).decode(),
            messages=[told],
            public=[ended],
        )
        return await self.ledger.commit(advance, unit)

    async def park(self, claimed: Claimed, calls: int = 1, **said: Any) -> list[str]:
        """Ask for `calls` tools; their executions."""
        verdict, executions = await self.try_park(claimed, calls, **said)
        assert verdict in (Verdict.COMMITTED, Verdict.READY), verdict
        return executions

    async def try_park(
        self, claimed: Claimed, calls: int = 1, **said: Any
    ) -> tuple[Verdict, list[str]]:
        """As `park`, whatever the verdict is."""
        numbers = range(claimed.calls + 1, claimed.calls + calls + 1)
        intents = [
            NewIntent(
                execution=execution_id(claimed.turn, number),
                ordinal=number,
                call_id=f"call_{number}",
                kind="remote",
                tool="echo",
                route="hands",
                arguments=b"{}",
                command=b"{}",
                next_inquiry_at=said.get("next_inquiry_at", self.now() + 1_000_000),
            )
            for number in numbers
        ]
        unit = self.unit(
            claimed,
            Next.PARK,
            intents=intents,
            calls=claimed.calls + calls,
            wait_mode=said.get("wait_mode", "ALL"),
        )
        verdict = await self.ledger.commit(advance, unit)
        return verdict, [intent.execution for intent in intents]

    async def settle(self, claimed: Claimed) -> Verdict:
        """End a cancelled Turn, or wait until its tools are known."""
        at = made.place(claimed, host=self.host.id, step=1, phase=SETTLE)
        unit = Advance(
            at=at,
            next=Next.SETTLE,
            now=self.now(),
            settle=Settle.CANCELLED,
            calls=claimed.calls,
            said=claimed.said,
        )
        if not claimed.open_count:
            end = settled_as(Settle.CANCELLED)
            unit = replace(
                unit,
                next=Next.SETTLED,
                end=end,
                checkpoint=self.checkpoint(claimed),
                applied=_received(claimed),
                public=[made.ended_badly(at, end, None)],
            )
        return await self.ledger.commit(advance, unit)

    def delivery(self, raw: bytes, *, claiming: str | None = None) -> Deliver:
        update = open_envelope(raw).body
        assert isinstance(update, (ExecutionUpdate, SnapshotUpdate))

        def replay(start: int) -> OutboxRow:
            return self.messages.replay(
                update.execution, "hands", "acme", from_sequence=start, now=self.now()
            )

        return Deliver(
            update=update,
            namespace=open_envelope(raw).namespace,
            envelope=raw,
            host=self.host.id,
            offers=frozenset() if claiming is None else frozenset({claiming}),
            replay=replay,
            relay=None,
            silence_ms=5_000,
            now=self.now(),
        )

    async def deliver(self, raw: bytes, *, claiming: str | None = None) -> Delivered:
        return await self.ledger.commit(deliver, self.delivery(raw, claiming=claiming))

    def cancelling(self, session: str, turn: str, request_id: str) -> Cancel:
        return Cancel(
            session=session,
            turn=turn,
            request_id=request_id,
            digest="sha256:cancel",
            make=lambda execution, route, at: self.messages.cancel(execution, route, "acme", at),
            repeat_ms=1000,
            host=None,
            relay=None,
            now=self.now(),
        )

    async def cancel(self, session: str, turn: str, request_id: str = "c1") -> Cancelled:
        return await self.ledger.commit(cancel, self.cancelling(session, turn, request_id))


Desks = tuple[Desk, Desk]


async def parked(
    desk: Desk, session: Session, request_id: str, calls: int, wait_mode: str = "ALL"
) -> tuple[Claimed, list[str]]:
    await session.submit(request_id, "x")
    (claimed,) = await desk.claim(ID)
    return claimed, await desk.park(claimed, calls, wait_mode=wait_mode)


def _received(claimed: Claimed) -> list[str]:
    return [row.execution for row in claimed.unapplied if row.state == "RECEIVED"]
