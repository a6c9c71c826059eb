"""`nerve quarantine`: messages that could not be taken in, on either side, and what a person decides."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import typer

from nerve.brain.ledger.deliver import Deliver, deliver
from nerve.common import inbox
from nerve.common.clock import SystemClock
from nerve.common.inbox import Try
from nerve.common.outbox import OutboxRow
from nerve.common.settings import Settings
from nerve.common.sql import Ledger, Row, open_sqlite
from nerve.deploy.client import existing
from nerve.deploy.databases import address_of
from nerve.deploy.migrate import ROOMS, meta_of, schema_of
from nerve.deploy.output import Console, brief, day_time
from nerve.hands.ledger.admit import Bar, bar
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import Envelope, open_envelope
from nerve.protocol.errors import BadInput, Damaged, NotFound
from nerve.protocol.execution import placeholder_result
from nerve.protocol.identity import turn_of
from nerve.protocol.objects import ObjectRef
from nerve.protocol.updates import ExecutionUpdate, SnapshotUpdate
from nerve.protocol.wire import parse_wire

DONE = 0
LISTED = 1000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message that waits for a person. `count`: how often it was tried."""

    ledger: str
    execution: str
    turn: str
    sequence: int
    kind: str
    reason: str
    count: int
    received_at: int
    message: str
    bytes: int
    refers_to: ObjectRef | None


@final
@dataclass(frozen=True, slots=True)
class _Side:
    """A ledger that is open; `room` is brain or hands."""

    name: str
    room: str
    ledger: Ledger


async def ls(directory: Path, console: Console, settings: Settings) -> int:
    """Everything that is quarantined."""
    found = [
        entry for side, row in await _rows(directory, settings) for entry in [_entry(side, row)]
    ]
    lines = [line for each in found for line in _lines(each)]
    console.answer({"quarantined": found}, "\n".join(lines) or "Nothing is quarantined.")
    return DONE


async def show(execution: str, directory: Path, console: Console, settings: Settings) -> int:
    """The messages of one execution, without what they carry."""
    async with _sides(directory, settings) as sides:
        found = [_entry(side, row) for side, row in await _of(execution, sides)]
    lines = [line for each in found for line in [*_lines(each), *_more(each)]]
    console.answer({"quarantined": found}, "\n".join(lines))
    return DONE


async def replay(execution: str, directory: Path, console: Console, settings: Settings) -> int:
    """Let hosts try again, with as many tries as at first."""
    now = SystemClock().now_ms()
    async with _sides(directory, settings) as sides:
        count = 0
        for side in {id(side): side for side, _ in await _of(execution, sides)}.values():
            unit = Try(execution=execution, sequence=0, tries=0, next_at=now)
            count += await side.ledger.commit(inbox.replay, unit)
    text = f"{count} message(s) of {execution} are tried again by a host within a second."
    console.answer({"execution": execution, "replayed": count}, text)
    return DONE


async def drop(
    execution: str, directory: Path, console: Console, settings: Settings, *, yes: bool
) -> int:
    """Give the messages up, so that their Turn goes on without what they carry."""
    async with _sides(directory, settings) as sides:
        found = await _of(execution, sides)
        if not yes:
            _confirm(execution, [_entry(side, row) for side, row in found], console)
        for side, row in found:
            await _give_up(side, row)
    text = (
        f"{len(found)} message(s) of {execution} are given up; the Turn"
        f" {turn_of(execution)} is told so."
    )
    console.answer({"execution": execution, "dropped": len(found)}, text)
    return DONE


def _confirm(execution: str, entries: Sequence[Entry], console: Console) -> None:
    if console.json_lines:
        raise BadInput(
            "this gives messages up for good", where="--yes", next_step="Say --yes beside --json"
        )
    for entry in entries:
        typer.echo("\n".join(_lines(entry)), err=True)
    typer.confirm(f"Give up what {execution} waits for?", abort=True, err=True)


async def _give_up(side: _Side, row: Row) -> None:
    """The Turn must not wait for what nobody will ever take in."""
    envelope = open_envelope(row["envelope"])
    execution, now = envelope.execution, SystemClock().now_ms()
    reason = f"an operator gave it up: {row['reason']}"[:1000]
    body = envelope.body
    if isinstance(body, StartCommand):
        unit = Bar(execution=execution, until=body.admit_before, code="dropped", reason=reason)
        await side.ledger.commit(bar, unit)
    elif isinstance(body, ExecutionUpdate | SnapshotUpdate) and body.result_ref is not None:
        await side.ledger.commit(deliver, _without_result(envelope, body, reason, now))
    await side.ledger.commit(inbox.drop, Try(execution=execution, sequence=0, tries=0))


def _without_result(
    envelope: Envelope, body: ExecutionUpdate | SnapshotUpdate, reason: str, now: int
) -> Deliver:
    """The tool ran and this is its end, with a placeholder for what it returned."""
    fields = body.to_json()
    for name in ("result_ref", "covers_admission"):
        fields.pop(name, None)
    error = Damaged(f"its result is lost; {reason}", where=envelope.execution)
    said = parse_wire(SnapshotUpdate, canonical_bytes(fields), "/body")

    def replay_nothing(sequence: int) -> OutboxRow:
        raise AssertionError(sequence)  # A snapshot closes every gap.

    return Deliver(
        update=said.with_result(placeholder_result(error)),
        namespace=envelope.namespace,
        envelope=envelope.raw,
        host=None,
        offers=frozenset(),
        replay=replay_nothing,
        relay=None,
        silence_ms=0,
        now=now,
    )


async def _rows(directory: Path, settings: Settings) -> list[tuple[_Side, Row]]:
    found: list[tuple[_Side, Row]] = []
    async with _sides(directory, settings) as sides:
        for side in sides:
            rows = await side.ledger.read(lambda tx: inbox.quarantined(tx, LISTED))
            found += [(side, row) for row in rows]
    return found


async def _of(execution: str, sides: Sequence[_Side]) -> list[tuple[_Side, Row]]:
    found: list[tuple[_Side, Row]] = []
    for side in sides:
        rows = await side.ledger.read(lambda tx: inbox.kept(tx, execution))
        found += [(side, row) for row in rows if row["state"] == "QUARANTINED"]
    if not found:
        raise NotFound(
            f"nothing of {ascii(execution)[:80]} is quarantined here",
            where="EXECUTION",
            next_step="`nerve quarantine ls` lists what is; each side has a ledger of its own",
        )
    return found


@asynccontextmanager
async def _sides(directory: Path, settings: Settings) -> AsyncGenerator[list[_Side]]:
    clock = SystemClock()
    sides: list[_Side] = []
    try:
        if settings.database:
            sides.append(await _database(settings, clock))
        else:
            place = existing(directory)
            for name in place.ledgers:
                schema = schema_of(name)
                ledger = await open_sqlite(place.ledger(name), schema, clock=clock, create=False)
                sides.append(_Side(name, schema.room, ledger))
        yield sides
    finally:
        for side in sides:
            await side.ledger.close()


async def _database(settings: Settings, clock: SystemClock) -> _Side:
    address = address_of(settings)
    meta = await meta_of(settings)
    if meta is None:
        raise NotFound(
            "the database holds no ledger yet",
            where="--database",
            next_step="`nerve migrate up` makes one",
        )
    from nerve.common.sql.postgres import open_postgres

    ledger: Any = await open_postgres(
        settings.database,
        ROOMS[meta.room],
        clock=clock,
        create=False,
        name=settings.database_schema or None,
    )
    return _Side(str(address), meta.room, ledger)


def _entry(side: _Side, row: Row) -> Entry:
    envelope = open_envelope(row["envelope"])
    body = envelope.body
    ref = getattr(body, "arguments_ref", None) or getattr(body, "result_ref", None)
    return Entry(
        ledger=side.name,
        execution=row["execution"],
        turn=turn_of(row["execution"]),
        sequence=row["sequence"],
        kind=str(envelope.kind),
        reason=row["reason"],
        count=row["tries"],
        received_at=row["received_at"],
        message=envelope.id,
        bytes=len(row["envelope"]),
        refers_to=ref,
    )


def _lines(each: Entry) -> list[str]:
    return [
        f"{each.execution}  {each.kind} in {each.ledger}, tried {each.count} times since"
        f" {day_time(each.received_at)}, of the Turn {each.turn}",
        f"  {brief(each.reason, 400)}",
    ]


def _more(each: Entry) -> list[str]:
    lines = [f"  message {each.message}, sequence {each.sequence}, {each.bytes:,} bytes"]
    if each.refers_to is not None:
        ref = each.refers_to
        lines.append(f"  refers to {ref.scope}/{ref.digest}, {ref.bytes:,} bytes")
    return lines
