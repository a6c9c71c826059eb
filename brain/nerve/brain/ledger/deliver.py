"""Updates from Hands, applied as a gapless prefix; a terminal one may claim its Thread at once.

Delivery always records. It claims only where the Thread may run here: `eligible` is the one predicate
that says so, and what does not pass becomes READY and is found by a scan.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import orjson

from nerve.brain.ledger import events
from nerve.brain.ledger.claim import Claimed, Unapplied, resume
from nerve.brain.ledger.events import NewEvent
from nerve.brain.state.turn import TurnPhase
from nerve.common import inbox
from nerve.common.lease import require_live
from nerve.common.outbox import OutboxRow, Relay, put
from nerve.common.record import record
from nerve.common.sql import Row, Tx, law, sql
from nerve.protocol.content import Message, Role, TextPart
from nerve.protocol.envelope import open_envelope
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, told
from nerve.protocol.identity import turn_of
from nerve.protocol.updates import ExecutionUpdate, LedgerMark, SnapshotUpdate

FIND = sql(
    "select i.execution, i.turn, i.thread, i.session, i.call_id, i.tool, i.route, i.kind, i.state,"
    " i.outcome, i.sequence, i.ledger_id, i.ledger_epoch, i.ledger_position, i.admitted_at,"
    " i.cancel_requested_at, t.phase, t.wait_mode, t.open_count, t.settle, t.pause_intent,"
    " t.retry_at, t.input, t.iterations, t.runs, t.calls, t.said, t.failure, t.lost_step,"
    " t.retry_policy, t.retry_count, h.phase as thread_phase, h.definition, h.token, h.position,"
    " h.digest, (select count(*) from (select 1 from intent u where u.turn = i.turn"
    " and u.state <> 'APPLIED' limit 2) as few) as unapplied"
    " from intent i join turn t on t.id = i.turn join thread h on h.id = i.thread"
    " where i.execution = :execution"
)
LOCK = sql(
    "select 1 from intent i join session s on s.id = i.session"
    " where i.execution = :execution for update of s"
)
"""Before `FIND`, on servers: everything in a Session is decided under the lock of its row."""
PROGRESS = sql(
    "update intent set outcome = :outcome, effect = :effect, attempt = :attempt,"
    " sequence = :sequence, hands_host = :host, ledger_id = :ledger_id,"
    " ledger_epoch = :ledger_epoch, ledger_position = :ledger_position, reason = :reason,"
    " admitted_at = coalesce(admitted_at, :at), inquiries = 0, next_inquiry_at = :next_inquiry_at"
    " where execution = :execution and state = 'OPEN'"
)
RECEIVE = sql(
    "update intent set state = 'RECEIVED', outcome = :outcome, effect = :effect,"
    " attempt = :attempt, sequence = :sequence, result = :result, reason = :reason,"
    " hands_host = :host, ledger_id = :ledger_id, ledger_epoch = :ledger_epoch,"
    " ledger_position = :ledger_position, admitted_at = coalesce(admitted_at, :at),"
    " completed_at = :at, received_at = :now, next_inquiry_at = null, command = null"
    " where execution = :execution and state = 'OPEN'"
)
ONE_LESS_OPEN = sql("update turn set open_count = open_count - 1 where id = :id")
WAKE = sql(
    "update thread set phase = 'READY', ready_at = :ready_at where id = :id and phase = 'WAITING'"
)
OBSERVE = sql(
    "insert into observation (execution, kind, body, created_at)"
    " values (:execution, :kind, :body, :now)"
)
SEEN_LEDGER = sql(
    "insert into hands_ledger (route, id, epoch, position, created_at, seen_at)"
    " values (:route, :id, :epoch, :position, :now, :now) on conflict (route) do update set"
    " id = excluded.id, epoch = excluded.epoch, position = excluded.position,"
    " seen_at = excluded.seen_at where hands_ledger.id <> excluded.id"
    " or hands_ledger.epoch <> excluded.epoch or hands_ledger.position < excluded.position"
)


SHOWN_CHARACTERS = 4096


class Accepted(StrEnum):
    """What became of an update: each of them may be acknowledged."""

    APPLIED = "APPLIED"
    DUPLICATE = "DUPLICATE"
    HELD = "HELD"
    STRANGER = "STRANGER"
    FOREIGN = "FOREIGN"
    """It names another tenant than the one who asked."""


@record
class Delivered:
    accepted: Accepted
    turn: str | None = None
    definition: str | None = None
    ready: bool = False
    claimed: Claimed | None = None


@record
class Deliver:
    """One update. `host` takes the Thread at once where it offers its definition and has a slot."""

    update: ExecutionUpdate | SnapshotUpdate
    namespace: str
    envelope: bytes
    host: str | None
    offers: frozenset[str]
    replay: Callable[[int], OutboxRow]
    relay: Relay | None
    silence_ms: int
    now: int


@law("brain.deliver", keys=lambda unit: (turn_of(unit.update.execution),))
async def deliver(tx: Tx, unit: Deliver) -> Delivered:
    await tx.lock(LOCK, execution=unit.update.execution)
    intent = await tx.one(FIND, execution=unit.update.execution)
    if intent is None or intent["kind"] != "remote":
        return Delivered(accepted=Accepted.STRANGER)
    if namespace_of(intent) != unit.namespace:
        return Delivered(accepted=Accepted.FOREIGN)
    same_ledger = _same_ledger(intent, unit.update.ledger)
    if intent["state"] != "OPEN" or (same_ledger and unit.update.sequence <= intent["sequence"]):
        if not _repeats(intent, unit.update):
            await observe(tx, intent["execution"], "late_update", unit.envelope, unit.now)
        return Delivered(accepted=Accepted.DUPLICATE)
    if _gap(intent, unit.update, same_ledger=same_ledger):
        return await _hold(tx, unit, intent)
    if not same_ledger:
        await observe(tx, intent["execution"], "other_ledger", unit.envelope, unit.now)
    delivered = await apply(tx, intent, unit.update, unit)
    if unit.update.state.is_terminal and unit.update.state is not ExecutionState.UNKNOWN:
        return delivered
    return await _apply_held(tx, unit, delivered)


def namespace_of(intent: Row) -> str:
    """The tenant whose Turn asked."""
    return str(intent["thread"]).partition("/")[0]


async def _apply_held(tx: Tx, unit: Deliver, delivered: Delivered) -> Delivered:
    """What came too early before may be next now."""
    for row in await inbox.held(tx, unit.update.execution):
        intent = await tx.one(FIND, execution=unit.update.execution)
        if intent is None or intent["state"] != "OPEN" or row["sequence"] > intent["sequence"] + 1:
            break
        update = open_envelope(row["envelope"]).body
        assert isinstance(update, ExecutionUpdate | SnapshotUpdate)
        if update.result_ref is not None:
            break  # Its result has to be fetched first: the scan of held messages does that.
        assert isinstance(update, ExecutionUpdate)
        if update.sequence == intent["sequence"] + 1:
            delivered = await apply(tx, intent, update, unit)
        await inbox.release(tx, execution=update.execution, sequence=update.sequence)
    return delivered


def _same_ledger(intent: Row, mark: LedgerMark) -> bool:
    if intent["ledger_id"] is None:
        return True
    return bool(intent["ledger_id"] == mark.ledger_id and intent["ledger_epoch"] == mark.epoch)


def _repeats(intent: Row, update: ExecutionUpdate | SnapshotUpdate) -> bool:
    """Whether a late update says nothing new."""
    return bool(update.sequence < intent["sequence"] or intent["outcome"] == update.state)


def _gap(intent: Row, update: ExecutionUpdate | SnapshotUpdate, *, same_ledger: bool) -> bool:
    if isinstance(update, SnapshotUpdate) or not same_ledger:
        return False
    return bool(update.sequence > intent["sequence"] + 1)


async def _hold(tx: Tx, unit: Deliver, intent: Row) -> Delivered:
    """Keep what came too early and ask for what is missing."""
    await inbox.hold(
        tx,
        execution=unit.update.execution,
        sequence=unit.update.sequence,
        envelope=unit.envelope,
        reason=f"waits for sequence {intent['sequence'] + 1}",
        next_at=unit.now + unit.silence_ms,
        now=unit.now,
    )
    replay = unit.replay(intent["sequence"] + 1)
    await put(tx, [replay], host=unit.host, now=unit.now, relay=unit.relay)
    return Delivered(accepted=Accepted.HELD)


async def apply(
    tx: Tx, intent: Row, update: ExecutionUpdate | SnapshotUpdate, unit: Deliver
) -> Delivered:
    """Record one update whose turn has come."""
    mark = update.ledger
    common: dict[str, Any] = {
        "execution": update.execution,
        "outcome": update.state.value,
        "effect": update.effect.value,
        "attempt": update.attempt,
        "sequence": update.sequence,
        "host": update.host,
        "ledger_id": mark.ledger_id,
        "ledger_epoch": mark.epoch,
        "ledger_position": mark.position,
        "reason": update.reason,
        "at": update.at,
    }
    await tx.later(
        SEEN_LEDGER,
        route=intent["route"],
        id=mark.ledger_id,
        epoch=mark.epoch,
        position=mark.position,
        now=unit.now,
    )
    if not update.state.is_terminal or update.state is ExecutionState.UNKNOWN:
        await tx.run(PROGRESS, next_inquiry_at=unit.now + unit.silence_ms, **common)
        await _tell(tx, intent, _progress_event(intent, update), unit.now)
        return Delivered(accepted=Accepted.APPLIED, turn=intent["turn"])
    result = _result_bytes(update)
    await tx.run(RECEIVE, result=result, now=unit.now, **common)
    if update.sequence > 1:
        await inbox.release(tx, execution=update.execution, sequence=update.sequence)
    facts = [*_reconciled(intent, update), _received_event(intent, update)]
    await events.append(tx, intent["session"], facts, now=unit.now)
    arrived = arrival(intent, update.state, update.effect, result, update.result)
    return await received(tx, intent, arrived, unit.host, unit.offers, unit.now)


def arrival(
    intent: Row,
    state: ExecutionState,
    effect: Effect,
    result: bytes | None,
    read: ExecutionResult | None,
) -> Unapplied:
    """The intent as it stands once its result was received."""
    return Unapplied(
        execution=intent["execution"],
        call_id=intent["call_id"],
        tool=intent["tool"],
        state="RECEIVED",
        outcome=state.value,
        effect=effect.value,
        result=result,
        read=read,
    )


async def received(
    tx: Tx, intent: Row, arrived: Unapplied, host: str | None, offers: frozenset[str], now: int
) -> Delivered:
    """One result less to wait for: claim the Thread here, make it READY, or leave it waiting."""
    turn, definition = intent["turn"], intent["definition"]
    goes_on = intent["thread_phase"] == "WAITING" and eligible(
        intent, open_count=intent["open_count"] - 1
    )
    may_claim = goes_on and host is not None and definition in offers
    if may_claim and host is not None and await require_live(tx, host):
        return Delivered(
            accepted=Accepted.APPLIED,
            turn=turn,
            definition=definition,
            claimed=await resume(tx, intent, arrived, host=host, now=now),
        )
    await tx.run(ONE_LESS_OPEN, id=turn)
    if goes_on:
        await tx.run(WAKE, id=intent["thread"], ready_at=now)
    return Delivered(accepted=Accepted.APPLIED, turn=turn, definition=definition, ready=goes_on)


def eligible(turn: Row, *, open_count: int) -> bool:
    """Whether the Turn may go on, by what it waits for (columns of `turn`) and how much is open."""
    if turn["phase"] == TurnPhase.SETTLING.value or turn["settle"] is not None:
        return open_count == 0
    if turn["pause_intent"]:
        return False
    return open_count == 0 or bool(turn["wait_mode"] == "ANY")


async def observe(tx: Tx, execution: str, kind: str, body: bytes, now: int) -> None:
    """Keep what was not applied, as evidence for a person."""
    await tx.later(OBSERVE, execution=execution, kind=kind, body=body, now=now)


def _result_bytes(update: ExecutionUpdate | SnapshotUpdate) -> bytes | None:
    return None if update.result is None else orjson.dumps(update.result.to_json())


async def _tell(tx: Tx, intent: Row, fact: NewEvent | None, now: int) -> None:
    if fact is not None:
        await events.append(tx, intent["session"], [fact], now=now)


def _named(intent: Row, kind: str, body: dict[str, Any]) -> NewEvent:
    return NewEvent(
        type=kind,
        thread=intent["thread"],
        turn=intent["turn"],
        body={
            "call_id": intent["call_id"],
            "tool": intent["tool"],
            "execution_id": intent["execution"],
            **body,
        },
    )


def _progress_event(intent: Row, update: ExecutionUpdate | SnapshotUpdate) -> NewEvent | None:
    if update.state is ExecutionState.UNKNOWN:
        if intent["outcome"] == "UNKNOWN":
            return None
        reason = update.reason or "nobody can know whether it took effect"
        return _named(
            intent,
            "tool.unknown",
            {
                "state": update.state.value,
                "effect": update.effect.value,
                "reason": reason,
                "attempt": update.attempt,
            },
        )
    if update.state is ExecutionState.STARTED:
        return _named(intent, "tool.started", {"attempt": update.attempt})
    return None


def _reconciled(intent: Row, update: ExecutionUpdate | SnapshotUpdate) -> list[NewEvent]:
    """An outcome that nobody could know is known now; what it is stands in the update as evidence."""
    if intent["outcome"] != "UNKNOWN":
        return []
    body: dict[str, Any] = {
        "state": update.state.value,
        "effect": update.effect.value,
        "attempt": update.attempt,
    }
    if update.reason:
        body["reason"] = update.reason
    return [_named(intent, "tool.reconciled", body)]


def _received_event(intent: Row, update: ExecutionUpdate | SnapshotUpdate) -> NewEvent:
    return received_event(
        intent, update.state, update.effect, update.result, attempt=update.attempt
    )


def received_event(
    intent: Row,
    state: ExecutionState,
    effect: Effect,
    result: ExecutionResult | None,
    *,
    attempt: int,
) -> NewEvent:
    """The public fact that a result is here; what a model is told of it stands in the message."""
    said = Message(
        role=Role.TOOL, parts=(TextPart(text=told(state, effect, result)[:SHOWN_CHARACTERS]),)
    )
    return _named(
        intent,
        "tool.received",
        {
            "state": state.value,
            "effect": effect.value,
            "attempt": attempt,
            "message": said.to_json(),
        },
    )
