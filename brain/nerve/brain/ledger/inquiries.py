"""What was asked for and not answered: repeated, asked about, or called UNKNOWN; never forgotten.

A command nobody confirmed is sent again as it was. An admitted execution is asked about, many in one
question. "Not found" allows a new start only from the very ledger that was there before the command.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import orjson

from nerve.brain.ledger import events
from nerve.brain.ledger.deliver import (
    FIND,
    LOCK,
    RECEIVE,
    SEEN_LEDGER,
    Accepted,
    Delivered,
    arrival,
    namespace_of,
    observe,
    received,
    received_event,
)
from nerve.brain.ledger.events import NewEvent
from nerve.brain.tools.messages import EVERYBODY, Messages
from nerve.common.outbox import OutboxRow, Relay, put
from nerve.common.sql import ALONE, Row, Tx, law, sql
from nerve.protocol.commands import KnownLedger
from nerve.protocol.errors import ToolFailed
from nerve.protocol.execution import Effect, ExecutionState, failed_result
from nerve.protocol.identity import ThreadKey, turn_of
from nerve.protocol.updates import Absence, LedgerMark, NotFoundUpdate

WRONG_LEDGER = "wrong_ledger"
DOUBTS_MAX = 3
DOUBT_MS = 250
QUESTIONS = 256

DUE = sql(
    "select execution, thread, route, outcome, sequence, hands_host, command, inquiries,"
    " cancel_requested_at, admitted_at from intent where next_inquiry_at is not null"
    " and next_inquiry_at <= :now order by next_inquiry_at limit :limit for update skip locked"
)
LATER = sql(
    "update intent set inquiries = inquiries + 1, next_inquiry_at = :next_at"
    " where execution = :execution and next_inquiry_at is not null"
)
COMMAND = sql(
    "select i.command, i.requested_at, i.reason, i.inquiries, l.id as seen_id, l.epoch as seen_epoch,"
    " l.position as seen_position from intent i left join hands_ledger l on l.route = i.route"
    " where i.execution = :execution"
)
RENEW = sql(
    "update intent set command = :command, next_inquiry_at = :next_at"
    " where execution = :execution and state = 'OPEN'"
)
CALL_UNKNOWN = sql(
    "update intent set outcome = 'UNKNOWN', effect = 'unconfirmed', reason = :reason,"
    " next_inquiry_at = :next_at where execution = :execution and state = 'OPEN'"
    " and outcome <> 'UNKNOWN'"
)
HELD = sql(
    "update intent set reason = :reason where execution = :execution and state = 'OPEN'"
    " and outcome = 'REQUESTED'"
)
DOUBTS = sql(
    "select count(distinct kind) as many from observation"
    " where execution = :execution and kind like 'went_back/%'"
)
ASK_AGAIN = sql(
    "update intent set next_inquiry_at = :next_at,"
    " outcome = case when outcome = 'REQUESTED' then 'ADMITTED' else outcome end"
    " where execution = :execution and state = 'OPEN'"
)
UNSETTLED = sql(
    "select execution, route, sequence from intent where state = 'APPLIED' and settled = 0"
    " and kind = 'remote' order by applied_at limit :limit for update skip locked"
)
OPEN_CALL = (
    "select 1 from intent where intent.execution = object.owner and intent.state <> 'APPLIED'"
)
"""Whether the arguments of a call may still be wanted."""
SETTLE = sql("update intent set settled = 1 where execution = :execution")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Milliseconds: silence before asking, first and longest wait between repeats."""

    silence_ms: int
    first_ms: int
    most_ms: int

    @property
    def longest_ms(self) -> int:
        """No question is due later than this."""
        return max(self.silence_ms, self.first_ms, self.most_ms)

    def after(self, inquiries: int) -> int:
        return min(self.most_ms, self.first_ms << min(inquiries, 20))

    def put_off(self, inquiries: int) -> int:
        """How long a command waits that is one of too many to be repeated now."""
        return min(8 * self.most_ms, 64 * self.after(inquiries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquire:
    """At most `repeats` commands are sent again (None: all that are due); the others wait longer."""

    messages: Messages
    patience: Patience
    host: str
    relay: Relay | None
    limit: int
    now: int
    repeats: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquired:
    """How many intents were due, and how many commands were repeated for them."""

    due: int
    repeated: int


@law("brain.inquire", keys=lambda unit: ("inquire", ALONE))
async def inquire(tx: Tx, unit: Inquire) -> Inquired:
    """Send what is due."""
    repeated = 0
    rows = await tx.all(DUE, now=unit.now, limit=unit.limit)
    outgoing: list[OutboxRow] = []
    grouped: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        unconfirmed = row["outcome"] == "REQUESTED"
        repeats = unconfirmed and (unit.repeats is None or repeated < unit.repeats)
        repeated += repeats
        patience = unit.patience
        wait = patience.put_off if unconfirmed and not repeats else patience.after
        next_at = unit.now + wait(row["inquiries"])
        await tx.later(LATER, execution=row["execution"], next_at=next_at)
        if row["cancel_requested_at"] is not None and row["outcome"] != "UNKNOWN":
            namespace = ThreadKey.parse(row["thread"]).namespace
            outgoing.append(
                unit.messages.cancel(row["execution"], row["route"], namespace, unit.now)
            )
        if repeats:
            outgoing.append(unit.messages.repeat(row["command"], row["execution"], row["route"]))
        elif not unconfirmed:
            grouped[row["route"], row["hands_host"]].append(row)
    for (route, host), asked in grouped.items():
        for first in range(0, len(asked), QUESTIONS):
            part = asked[first : first + QUESTIONS]
            questions = [(row["execution"], row["sequence"]) for row in part]
            outgoing.append(unit.messages.ask(questions, route, host, unit.now))
    await put(tx, outgoing, host=unit.host, now=unit.now, relay=unit.relay)
    return Inquired(due=len(rows), repeated=repeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class TellSettled:
    messages: Messages
    host: str
    relay: Relay | None
    limit: int
    now: int


@law("brain.tell_settled", keys=lambda unit: ("settled", ALONE))
async def tell_settled(tx: Tx, unit: TellSettled) -> int:
    """Let Hands shrink what was applied here for good."""
    rows = await tx.all(UNSETTLED, limit=unit.limit)
    by_route: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for row in rows:
        by_route[row["route"]].append((row["execution"], row["sequence"]))
    await tx.many(SETTLE, [{"execution": row["execution"]} for row in rows])
    outgoing = [
        unit.messages.settled(settled[first : first + QUESTIONS], route, unit.now)
        for route, settled in by_route.items()
        for first in range(0, len(settled), QUESTIONS)
    ]
    await put(tx, outgoing, host=unit.host, now=unit.now, relay=unit.relay)
    return len(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    update: NotFoundUpdate
    namespace: str
    """As its envelope has it: that of the question, which for many at once is `EVERYBODY`."""
    envelope: bytes
    messages: Messages
    patience: Patience
    host: str | None
    offers: frozenset[str]
    relay: Relay | None
    now: int


@law("brain.not_found", keys=lambda unit: (turn_of(unit.update.execution),))
async def not_found(tx: Tx, unit: NotFound) -> Delivered:
    """What an absence means for an intent: start again, renew, refuse, or UNKNOWN."""
    await tx.lock(LOCK, execution=unit.update.execution)
    intent = await tx.one(FIND, execution=unit.update.execution)
    if intent is None or intent["kind"] != "remote":
        return Delivered(accepted=Accepted.STRANGER)
    if unit.namespace not in (namespace_of(intent), EVERYBODY):
        return Delivered(accepted=Accepted.FOREIGN)
    if intent["state"] != "OPEN" or intent["outcome"] == "UNKNOWN":
        return Delivered(accepted=Accepted.DUPLICATE)
    stored = await tx.one(COMMAND, execution=unit.update.execution)
    assert stored is not None
    verdict = await _answer(tx, unit, intent, stored)
    mark = unit.update.ledger
    await tx.run(
        SEEN_LEDGER,
        route=intent["route"],
        id=mark.ledger_id,
        epoch=mark.epoch,
        position=mark.position,
        now=unit.now,
    )
    return verdict


async def _answer(tx: Tx, unit: NotFound, intent: Row, stored: Row) -> Delivered:
    update = unit.update
    same = Delivered(accepted=Accepted.APPLIED, turn=intent["turn"])
    if update.absence is Absence.REFUSED and update.code != WRONG_LEDGER:
        return await _refused(tx, unit, intent)
    if update.absence is Absence.HELD:
        # It goes on as soon as what it waits for is there: each repeat of the command makes Hands look.
        await tx.run(HELD, execution=intent["execution"], reason=update.reason)
        return same
    if _contradicts(intent, stored, update) and await _doubt(tx, unit, intent, stored):
        return same
    if not may_start_again(intent, stored, update):
        await observe(tx, intent["execution"], "not_found", unit.envelope, unit.now)
        await _call_unknown(tx, unit, intent)
        # A ledger that came after it never runs it: it writes down that nobody can know, and so an
        # operator finds it there and can reconcile it.
        row = unit.messages.for_another(
            stored["command"], update.ledger, _seen(stored), now=unit.now
        )
        if row is not None:
            await put(tx, [row], host=unit.host, now=unit.now, relay=unit.relay)
        return same
    if update.absence is Absence.NOT_ADMITTED:
        row = unit.messages.renew(stored["command"], now=unit.now)
        next_at = unit.now + unit.patience.first_ms
        await tx.run(RENEW, execution=intent["execution"], command=row.envelope, next_at=next_at)
        await put(tx, [row], host=unit.host, now=unit.now, relay=unit.relay)
    elif not update.older_commands_arriving:
        row = unit.messages.repeat(stored["command"], intent["execution"], intent["route"])
        await put(tx, [row], host=unit.host, now=unit.now, relay=unit.relay)
    return same


def _contradicts(intent: Row, stored: Row, update: NotFoundUpdate) -> bool:
    """Whether a ledger now denies what it said before: it went back, or this answer is an old one."""
    mark = update.ledger
    same = (mark.ledger_id, mark.epoch) == (stored["seen_id"], stored["seen_epoch"])
    admitted = intent["admitted_at"] is not None and update.absence is Absence.NEVER_SEEN
    return bool(same and (mark.position < stored["seen_position"] or admitted))


async def _doubt(tx: Tx, unit: NotFound, intent: Row, stored: Row) -> bool:
    """Whether to ask once more: this answer may only have been overtaken by a later one on its way.

    A ledger that did go back says so again and again, to question after question. It is asked, and
    not sent the command, which it might run a second time. Each question waits longer: what a dead
    Brain had taken in and not acknowledged comes again behind what is newer, for a while.
    """
    execution = intent["execution"]
    found = await tx.one(DOUBTS, execution=execution)
    many = 0 if found is None else int(found["many"])
    if many >= DOUBTS_MAX:
        return False
    kind = f"went_back/{stored['inquiries']}"
    await observe(tx, execution, kind, unit.envelope, unit.now)
    await tx.run(ASK_AGAIN, execution=execution, next_at=unit.now + (DOUBT_MS << many))
    return True


def _seen(stored: Row) -> KnownLedger | None:
    if stored["seen_id"] is None:
        return None
    return KnownLedger(ledger_id=stored["seen_id"], epoch=stored["seen_epoch"])


def may_start_again(intent: Row, stored: Row, update: NotFoundUpdate) -> bool:
    """Whether the ledger that answers can prove that nothing was started.

    It must be the one that was there before the command, in the same epoch, and not have gone back.
    An execution that any ledger admitted, and that is not found now, was lost with that ledger.
    """
    if update.absence in (Absence.FORGOTTEN, Absence.REFUSED):
        return False
    if intent["admitted_at"] is not None:
        return False
    if stored["seen_id"] is None:
        return True
    seen = LedgerMark(
        ledger_id=stored["seen_id"],
        epoch=stored["seen_epoch"],
        position=stored["seen_position"],
    )
    return update.ledger.continues(seen)


async def _call_unknown(tx: Tx, unit: NotFound, intent: Row) -> None:
    reason = (
        "the Hands ledger that may have run it is gone or was restored"
        f" ({unit.update.absence.value}, ledger {unit.update.ledger.ledger_id})"
    )
    next_at = unit.now + unit.patience.most_ms
    written = await tx.run(
        CALL_UNKNOWN, execution=intent["execution"], reason=reason, next_at=next_at
    )
    if written:
        body = _names(intent) | {"state": "UNKNOWN", "effect": "unconfirmed", "reason": reason}
        fact = NewEvent(
            type="tool.unknown", thread=intent["thread"], turn=intent["turn"], body=body
        )
        await events.append(tx, intent["session"], [fact], now=unit.now)


async def _refused(tx: Tx, unit: NotFound, intent: Row) -> Delivered:
    """Hands would not run it: nothing happened, and the model is told so."""
    update = unit.update
    text = update.reason or "the Hands host refused to run it"
    result = failed_result(ToolFailed(text))
    written = orjson.dumps(result.to_json())
    await tx.run(
        RECEIVE,
        execution=intent["execution"],
        outcome=ExecutionState.FAILED.value,
        effect=Effect.NONE.value,
        attempt=0,
        sequence=intent["sequence"],
        result=written,
        reason=text,
        host=update.host,
        ledger_id=update.ledger.ledger_id,
        ledger_epoch=update.ledger.epoch,
        ledger_position=update.ledger.position,
        at=update.at,
        now=unit.now,
    )
    fact = received_event(intent, ExecutionState.FAILED, Effect.NONE, result, attempt=0)
    await events.append(tx, intent["session"], [fact], now=unit.now)
    arrived = arrival(intent, ExecutionState.FAILED, Effect.NONE, written, result)
    return await received(tx, intent, arrived, unit.host, unit.offers, unit.now)


def _names(intent: Row) -> dict[str, Any]:
    return {
        "call_id": intent["call_id"],
        "tool": intent["tool"],
        "execution_id": intent["execution"],
    }


ANYTHING = sql(
    "select 1 where exists (select 1 from intent where next_inquiry_at is not null"
    " and next_inquiry_at <= :now) or exists (select 1 from intent where state = 'APPLIED'"
    " and settled = 0 and kind = 'remote')"
)


async def anything_due(tx: Tx, now: int) -> bool:
    """Whether a scan has anything to write: most find nothing and need no commit."""
    return await tx.one(ANYTHING, now=now) is not None
