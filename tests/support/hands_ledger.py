"""A Hands ledger without a worker: laws called one by one, also over two connections."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nerve.common import process
from nerve.common.clock import VirtualClock
from nerve.common.lease import FIRST_BEAT, REGISTER, Release, release
from nerve.common.sql import Ledger, Row, Tx, law, open_sqlite, sql
from nerve.common.sql.postgres import open_postgres
from nerve.hands.ledger import HANDS_SCHEMA
from nerve.hands.ledger.admit import Admit, Command, Verdict, admit
from nerve.hands.ledger.answers import recorded
from nerve.hands.ledger.cancel import Cancel, Cancelled, request_cancel
from nerve.hands.ledger.finish import Finish, finish
from nerve.hands.ledger.records import read_row
from nerve.hands.ledger.release import release_executions
from nerve.hands.ledger.reports import Speaker
from nerve.hands.state import Move
from nerve.protocol.catalog import Catalog
from nerve.protocol.envelope import open_envelope
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, value_result
from nerve.protocol.updates import ExecutionUpdate
from support.hands_world import Asker


def tools() -> Catalog:
    catalog = Catalog()

    @catalog.tool
    async def once(text: str) -> str:
        return text

    @catalog.tool(idempotent_start=True)
    async def again(text: str) -> str:
        return text

    return catalog


@law("test.register", keys=lambda unit: (unit[0],))
async def register(tx: Tx, unit: tuple[str, int]) -> None:
    """A host under a name that a test chose, with this process behind it."""
    host, now = unit
    mark = process.own()
    await tx.run(
        REGISTER,
        id=host,
        role="hands",
        pid=mark.pid,
        started=mark.started,
        boot=mark.place,
        offers="{}",
        lease_ms=30_000,
        now=now,
    )
    await tx.run(FIRST_BEAT, id=host)


@dataclass(slots=True)
class Book:
    """One connection to the ledger, and the host that acts through it."""

    ledger: Ledger
    host: str
    speaker: Speaker
    clock: VirtualClock
    asker: Asker = field(default_factory=lambda: Asker(tools()))

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def command(self, tool: str = "once", *, start: bool = True, **changes: object) -> Command:
        body = self.asker.call(tool, text="x")
        fields: dict[str, object] = {
            "id": body.execution,
            "namespace": body.namespace,
            "cell": body.reply_to.cell,
            "tool": body.tool,
            "tool_version": body.tool_version,
            "binding_digest": body.binding_digest,
            "request_digest": body.request_digest,
            "envelope": self.asker.seal(body),
            "issued_at": self.now,
            "admit_before": self.now + 3_600_000,
            "knows_us": None,
            "repeatable": tool == "again",
            "start": start,
        }
        return Command(**(fields | changes))  # type: ignore[arg-type]

    async def admit(self, *commands: Command) -> list[Verdict]:
        unit = Admit(
            host=self.host,
            began_at=self.ledger.identity.created_at,
            speaker=self.speaker,
            commands=commands,
            now=self.now,
        )
        return await self.ledger.commit(admit, unit)

    async def finish(
        self,
        id: str,
        *,
        token: int = 1,
        state: ExecutionState = ExecutionState.SUCCEEDED,
        effect: Effect = Effect.COMPLETED,
        result: ExecutionResult | None = None,
    ) -> int | None:
        unit = Finish(
            id=id,
            host=self.host,
            token=token,
            attempt=1,
            move=Move(state=state, effect=effect),
            result=result or value_result("done"),
            pages=(),
            seal=None,
            speaker=self.speaker,
            now=self.now,
        )
        return await self.ledger.commit(finish, unit)

    async def cancel(self, id: str) -> Cancelled:
        unit = Cancel(
            id=id, namespace="acme", cell="cell-1", reason=None, speaker=self.speaker, now=self.now
        )
        return await self.ledger.commit(request_cancel, unit)

    async def release(self, host: str) -> bool:
        async def also(tx: Tx, incarnation: str, now: int) -> None:
            await release_executions(tx, incarnation, now, self.speaker)

        return await self.ledger.commit(release, Release(host=host, now=self.now, also=also))

    async def row(self, id: str) -> Row:
        found = await self.ledger.read(lambda tx: read_row(tx, id))
        assert found is not None, id
        return found

    async def updates(self, id: str) -> list[ExecutionUpdate]:
        raws = await self.ledger.read(lambda tx: recorded(tx, id, 1, 100))
        bodies = [open_envelope(raw).body for raw in raws]
        return [body for body in bodies if isinstance(body, ExecutionUpdate)]

    async def outbox(self) -> list[Row]:
        statement = sql("select * from outbox order by created_at, id")

        async def query(tx: Tx) -> list[Row]:
            return list(await tx.all(statement))

        return await self.ledger.read(query)


@asynccontextmanager
async def open_book(
    place: Path | str,
    clock: VirtualClock,
    *,
    host: str = "host-1",
    asker: Asker | None = None,
) -> AsyncGenerator[Book]:
    """Open the ledger in the file or database `place` and register `host` in it."""
    ledger: Ledger = (
        await open_sqlite(place, HANDS_SCHEMA, clock=clock, create=True)
        if isinstance(place, Path)
        else await open_postgres(place, HANDS_SCHEMA, clock=clock, create=True)
    )
    try:
        await ledger.commit(register, (host, clock.now_ms()))
        speaker = Speaker(
            deployment="local",
            route="hands",
            ledger_id=ledger.identity.id,
            epoch=ledger.identity.epoch,
            host=host,
        )
        yield Book(ledger, host, speaker, clock, asker or Asker(tools()))
    finally:
        await ledger.close()


def unhindered(tool: str, version: str, namespace: str) -> str | None:
    """An obstacle that never stands in the way."""
    return None
