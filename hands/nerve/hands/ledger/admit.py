"""Admission: a bundle of commands becomes executions, STARTED at once where this host has room.

A repeated command finds its row and changes nothing. The same id with another request digest is a
conflict. What expired before it came is not admitted; what was refused once stays refused. A command
that was meant for a ledger which this one replaced may have run: it is recorded as UNKNOWN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nerve.common.lease import require_live
from nerve.common.record import record
from nerve.common.sql import Row, Tx, law, sql
from nerve.hands.ledger.records import read_row
from nerve.hands.ledger.reports import Speaker, move
from nerve.hands.state.record import doubtful
from nerve.protocol.execution import Effect, ExecutionState

INSERT = sql(
    "insert into execution (id, state, effect, attempt, host, token, epoch, repeatable, sequence,"
    " namespace, cell, tool, tool_version, binding_digest, request_digest, command,"
    " admitted_at, admit_before, started_at)"
    " values (:id, :state, :effect, :attempt, :host, :attempt, :epoch, :repeatable, 0,"
    " :namespace, :cell, :tool, :tool_version, :binding_digest, :request_digest, :command,"
    " :now, :admit_before, :started_at)"
    " on conflict (id) do nothing"
)
KNOWN = sql("select namespace, request_digest from execution where id = :id")
ANY_BARRED = sql("select 1 from barred limit 1")
BARRED = sql("select code, reason from barred where execution = :id and until >= :admit_before")


class Admission(StrEnum):
    ADMITTED = "admitted"
    STARTED = "started"
    KNOWN = "known"
    CONFLICT = "conflict"
    EXPIRED = "expired"
    BARRED = "barred"
    DOUBTFUL = "doubtful"
    TOMBSTONE = "tombstone"


@record
class Command:
    """A start command as it goes into the ledger. `start`: a slot of this host is reserved for it.

    `cell` is the address of the Brain ledger: its cell, and its seat where it named one.
    `knows_us`: whether its sender named this ledger and epoch; None where it named none.
    """

    id: str
    namespace: str
    cell: str
    tool: str
    tool_version: str
    binding_digest: str
    request_digest: str
    envelope: bytes
    issued_at: int
    admit_before: int
    knows_us: bool | None
    repeatable: bool
    start: bool


@record
class Verdict:
    admission: Admission
    code: str | None = None
    reason: str | None = None


@record
class Admit:
    """`began_at` is when this epoch of the ledger began."""

    host: str
    began_at: int
    speaker: Speaker
    commands: Sequence[Command]
    now: int


@law("hands.admit", keys=lambda unit: tuple(command.id for command in unit.commands))
async def admit(tx: Tx, unit: Admit) -> list[Verdict]:
    """One verdict per command, in order."""
    # A host that is not LIVE may still admit: what it cannot own waits for one that can.
    live = await require_live(tx, unit.host)
    any_barred = await tx.one(ANY_BARRED) is not None
    return await tx.gather([_admit(tx, unit, each, live, any_barred) for each in unit.commands])


async def _admit(tx: Tx, unit: Admit, command: Command, live: bool, any_barred: bool) -> Verdict:
    if any_barred and (refusal := await _barred(tx, command)) is not None:
        return refusal
    if command.admit_before < unit.now:
        known = await tx.one(KNOWN, id=command.id)
        return Verdict(admission=Admission.EXPIRED) if known is None else _known(known, command)
    doubt = doubtful(
        began_at=unit.began_at,
        epoch=unit.speaker.epoch,
        issued_at=command.issued_at,
        known=command.knows_us,
        repeatable=command.repeatable,
    )
    start = command.start and live and doubt is None
    inserted = await tx.run(
        INSERT,
        id=command.id,
        state=ExecutionState.STARTED if start else ExecutionState.ADMITTED,
        effect=Effect.UNCONFIRMED if start else Effect.NONE,
        attempt=1 if start else 0,
        host=unit.host if start else None,
        epoch=unit.speaker.epoch,
        repeatable=int(command.repeatable),
        namespace=command.namespace,
        cell=command.cell,
        tool=command.tool,
        tool_version=command.tool_version,
        binding_digest=command.binding_digest,
        request_digest=command.request_digest,
        command=command.envelope,
        now=unit.now,
        admit_before=command.admit_before,
        started_at=unit.now if start else None,
    )
    if inserted and doubt is not None:
        row = await read_row(tx, command.id)
        assert row is not None
        await move(tx, unit.speaker, row, doubt, now=unit.now)
        return Verdict(admission=Admission.DOUBTFUL)
    if inserted:
        return Verdict(admission=Admission.STARTED if start else Admission.ADMITTED)
    known = await tx.one(KNOWN, id=command.id)
    assert known is not None
    return _known(known, command)


async def _barred(tx: Tx, command: Command) -> Verdict | None:
    row = await tx.one(BARRED, id=command.id, admit_before=command.admit_before)
    if row is None:
        return None
    return Verdict(admission=Admission.BARRED, code=row["code"], reason=row["reason"])


def _known(row: Row, command: Command) -> Verdict:
    if row["namespace"] != command.namespace:
        return Verdict(admission=Admission.CONFLICT)
    if row["request_digest"] is None:
        return Verdict(admission=Admission.TOMBSTONE)
    same = row["request_digest"] == command.request_digest
    return Verdict(admission=Admission.KNOWN if same else Admission.CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    execution: str
    until: int
    code: str
    reason: str


BAR = sql(
    "insert into barred (execution, until, code, reason)"
    " values (:execution, :until, :code, :reason)"
    " on conflict (execution) do update"
    " set until = excluded.until, code = excluded.code, reason = excluded.reason"
    " where excluded.until > barred.until"
)
HOLDS = sql("select 1 from execution where id = :execution")


@law("hands.bar", keys=lambda unit: (unit.execution,))
async def bar(tx: Tx, unit: Bar) -> bool:
    """Keep a refused command refused after it was answered so; False where it was admitted before."""
    if await tx.one(HOLDS, execution=unit.execution) is not None:
        return False
    await tx.run(
        BAR, execution=unit.execution, until=unit.until, code=unit.code, reason=unit.reason
    )
    return True
