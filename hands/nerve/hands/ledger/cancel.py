"""Cancel: a tombstone before the start, a recorded wish after it, a repeated answer once it ended."""

from dataclasses import dataclass
from enum import StrEnum

from nerve.common.sql import Tx, law, sql
from nerve.hands.ledger.records import read_locked, read_row, record_of
from nerve.hands.ledger.reports import Report, Speaker, move, report, report_present
from nerve.hands.state.cancel import TOMBSTONE, cancel
from nerve.protocol.execution import Effect, ExecutionState

REQUEST = sql(
    "update execution set cancel_requested_at = :now, cancel_reason = :reason"
    " where id = :id and cancel_requested_at is null"
)
# A tombstone has no request digest and no command: whatever comes under its id was cancelled.
TOMB = sql(
    "insert into execution (id, state, effect, attempt, token, epoch, repeatable, sequence, told,"
    " namespace, cell, tool, tool_version, binding_digest, code, reason, cancel_requested_at,"
    " cancel_reason, admitted_at, admit_before, ended_at)"
    " values (:id, :state, :effect, 0, 0, :epoch, 0, 1, :state, :namespace, :cell, '', '', '',"
    " :code, :why, :now, :reason, :now, 0, :now)"
)


class Cancelled(StrEnum):
    """What a cancel met. CONFIRMED covers a tombstone that it left."""

    CONFIRMED = "confirmed"
    REQUESTED = "requested"
    ALREADY_REQUESTED = "already_requested"
    ENDED = "ended"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    id: str
    namespace: str
    cell: str
    reason: str | None
    speaker: Speaker
    now: int


@law("hands.cancel", keys=lambda unit: (unit.id,))
async def request_cancel(tx: Tx, unit: Cancel) -> Cancelled:
    row = await read_locked(tx, unit.id)
    if row is None:
        await _bury(tx, unit)
        return Cancelled.CONFIRMED
    if row["namespace"] != unit.namespace:
        return Cancelled.FOREIGN
    record = record_of(row)
    decided = cancel(record)
    if record.state.is_terminal:
        return Cancelled.ENDED
    if decided.move is None and not decided.requested:
        return Cancelled.ALREADY_REQUESTED
    await tx.run(REQUEST, id=unit.id, now=unit.now, reason=unit.reason)
    row = await read_row(tx, unit.id)
    assert row is not None
    if decided.move is not None:
        await move(tx, unit.speaker, row, decided.move, now=unit.now)
        return Cancelled.CONFIRMED
    await report_present(tx, unit.speaker, row, waiting=row["waiting"], now=unit.now)
    return Cancelled.REQUESTED


async def _bury(tx: Tx, unit: Cancel) -> None:
    await tx.run(
        TOMB,
        id=unit.id,
        state=TOMBSTONE.state,
        effect=TOMBSTONE.effect,
        epoch=unit.speaker.epoch,
        namespace=unit.namespace,
        cell=unit.cell,
        code=TOMBSTONE.code,
        why=TOMBSTONE.reason,
        reason=unit.reason,
        now=unit.now,
    )
    what = Report(
        execution=unit.id,
        namespace=unit.namespace,
        cell=unit.cell,
        sequence=1,
        state=ExecutionState.CANCELLED,
        effect=Effect.NONE,
        attempt=0,
        host=None,
        request_digest=None,
        cancel_requested=True,
        code=TOMBSTONE.code,
        reason=TOMBSTONE.reason,
    )
    await report(tx, unit.speaker, what, now=unit.now)
