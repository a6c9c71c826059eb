"""Cancel: a queued Turn ends at once; an active one settles what it started outside, and says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from nerve.brain.ledger import events
from nerve.brain.ledger.admission import Request, find_request, put_request
from nerve.brain.ledger.advance import NEXT_TURN
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.sessions import LOCK as LOCK_SESSION
from nerve.brain.state.thread import ThreadPhase, after_turn
from nerve.common.outbox import OutboxRow, Relay, put
from nerve.common.sql import Row, Tx, law, sql
from nerve.protocol.errors import UnknownTurn, WrongState

FIND = sql(
    "select t.*, h.phase as thread_phase, h.head, h.host, h.token, h.definition"
    " from turn t join thread h on h.id = t.thread where t.id = :id"
)
END_QUEUED = sql(
    "update turn set phase = 'CANCELLED', cancel_requested_at = :now, ended_at = :now"
    " where id = :id"
)
MOVE_HEAD = sql(
    "update thread set head = :head, phase = :phase, ready_at = :now"
    " where id = :id and head = :turn and phase = 'READY'"
)
MARK = sql(
    "update turn set cancel_requested_at = :now, settle = 'cancelled', phase = :phase,"
    " retry_at = null where id = :id"
)
OPEN_INTENTS = sql(
    "select execution, route, outcome, hands_host from intent"
    " where turn = :turn and state = 'OPEN' and kind = 'remote'"
)
MARK_INTENTS = sql(
    "update intent set cancel_requested_at = coalesce(cancel_requested_at, :now),"
    " next_inquiry_at = :next_at where turn = :turn and state = 'OPEN' and kind = 'remote'"
)
READY_NOW = sql(
    "update thread set phase = 'READY', ready_at = :now"
    " where id = :id and phase in ('READY', 'WAITING')"
)

MakeCancel = Callable[[str, str, int], OutboxRow]
"""`make(execution, route, now)`: the outgoing CancelExecution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    session: str
    turn: str
    request_id: str
    digest: str
    make: MakeCancel
    repeat_ms: int
    host: str | None
    relay: Relay | None
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """`ended`: it is over. Otherwise it settles, and `status()` says what it waits for."""

    turn: str
    ended: bool
    ready: str | None = None
    owner: str | None = None


@law("brain.cancel", keys=lambda unit: (unit.session, unit.turn))
async def cancel(tx: Tx, unit: Cancel) -> Cancelled:
    """Admit a cancel.

    Raises:
        UnknownTurn, RequestConflict.
        WrongState: the Turn ended otherwise before.
    """
    request = Request(
        session=unit.session,
        request_id=unit.request_id,
        operation="cancel",
        target=unit.turn,
        digest=unit.digest,
    )
    await tx.lock(LOCK_SESSION, id=unit.session)
    known = await find_request(tx, request)
    if known is not None:
        receipt = orjson.loads(known[1] or "{}")
        return Cancelled(turn=unit.turn, ended=receipt.get("ended", False))
    turn = await tx.one(FIND, id=unit.turn)
    if turn is None or turn["session"] != unit.session:
        raise unknown_turn(unit.turn)
    if turn["ended_at"] is not None and turn["phase"] != "CANCELLED":
        raise WrongState(
            f"the Turn {unit.turn} is {turn['phase']} and cannot be cancelled",
            where="turn",
            next_step="a finished Turn stays what it is; submit another one",
        )
    verdict = await _cancel(tx, unit, turn)
    receipt = orjson.dumps({"ended": verdict.ended}).decode()
    await put_request(tx, request, turn=unit.turn, receipt=receipt, now=unit.now)
    return verdict


async def _cancel(tx: Tx, unit: Cancel, turn: Row) -> Cancelled:
    if turn["ended_at"] is not None:
        return Cancelled(turn=unit.turn, ended=True)
    if turn["phase"] == "QUEUED":
        return await _end_queued(tx, unit, turn)
    if turn["cancel_requested_at"] is not None:
        return Cancelled(turn=unit.turn, ended=False, owner=turn["host"])
    running = turn["thread_phase"] == ThreadPhase.RUNNING.value
    await tx.run(MARK, id=unit.turn, phase="RUNNING" if running else "SETTLING", now=unit.now)
    await _cancel_intents(tx, unit)
    await _tell(tx, turn, "turn.cancel_requested", unit)
    if running:
        return Cancelled(turn=unit.turn, ended=False, owner=turn["host"])
    ready = None
    # A backoff is cut short; what waits for tools goes on waiting for them.
    waits = turn["open_count"] > 0 and turn["thread_phase"] == ThreadPhase.WAITING.value
    if not waits and await tx.run(READY_NOW, id=turn["thread"], now=unit.now):
        ready = turn["definition"]
    return Cancelled(turn=unit.turn, ended=False, ready=ready)


async def _end_queued(tx: Tx, unit: Cancel, turn: Row) -> Cancelled:
    ready = None
    if turn["head"] == unit.turn:
        following = await tx.one(NEXT_TURN, thread=turn["thread"], turn=unit.turn)
        head = None if following is None else following["id"]
        await tx.run(
            MOVE_HEAD,
            id=turn["thread"],
            turn=unit.turn,
            head=head,
            phase=after_turn(head).value,
            now=unit.now,
        )
        ready = turn["definition"] if head is not None else None
    await tx.run(END_QUEUED, id=unit.turn, now=unit.now)
    await _tell(tx, turn, "turn.cancelled", unit)
    return Cancelled(turn=unit.turn, ended=True, ready=ready)


async def _cancel_intents(tx: Tx, unit: Cancel) -> None:
    rows: Sequence[Row] = await tx.all(OPEN_INTENTS, turn=unit.turn)
    if not rows:
        return
    await tx.run(MARK_INTENTS, turn=unit.turn, now=unit.now, next_at=unit.now + unit.repeat_ms)
    outgoing = [unit.make(row["execution"], row["route"], unit.now) for row in rows]
    await put(tx, outgoing, host=unit.host, now=unit.now, relay=unit.relay)


async def _tell(tx: Tx, turn: Row, kind: str, unit: Cancel) -> None:
    fact = NewEvent(
        type=kind,
        thread=turn["thread"],
        turn=unit.turn,
        body={"request_id": unit.request_id} if kind == "turn.cancel_requested" else {},
    )
    await events.append(tx, unit.session, [fact], now=unit.now)


def unknown_turn(id: str) -> UnknownTurn:
    return UnknownTurn(
        f"there is no Turn {id}",
        where="turn",
        next_step="`nerve ls` lists the Turns that are there",
    )
