"""Admission of Turns: one commit, and the same request id is the same request for ever."""

import orjson

from nerve.brain.ledger import events
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.sessions import FIND as FIND_SESSION
from nerve.brain.ledger.sessions import (
    FIND_THREAD,
    LOCK,
    OpenSession,
    closed,
    open_session,
    unknown_session,
    unknown_thread,
)
from nerve.common.record import record
from nerve.common.sql import Tx, law, sql
from nerve.protocol.content import Message
from nerve.protocol.errors import RequestConflict
from nerve.protocol.identity import ThreadKey

FIND_REQUEST = sql(
    "select operation, digest, target, turn, receipt from request"
    " where session = :session and request_id = :request_id"
)
PUT_REQUEST = sql(
    "insert into request"
    " (session, request_id, operation, digest, target, turn, receipt, created_at)"
    " values (:session, :request_id, :operation, :digest, :target, :turn, :receipt, :now)"
)
QUEUE = sql(
    "insert into turn (id, session, thread, ordinal, request_id, phase, input, iterations, runs,"
    " calls, said, open_count, wait_mode, pause_intent, pause_revision, retry_count, priority, created_at)"
    " values (:id, :session, :thread, :ordinal, :request_id, 'QUEUED', :input, 0, 0, 0, 0, 0, 'ALL',"
    " 0, 0, 0, 0, :now)"
)
NEXT = sql("update thread set next_ordinal = next_ordinal + 1 where id = :id")
NEXT_AS_HEAD = sql(
    "update thread set next_ordinal = next_ordinal + 1, phase = 'READY', head = :turn,"
    " ready_at = :now where id = :id"
)


@record
class Request:
    """What makes a request the same one: its operation, its target and its content's digest."""

    session: str
    request_id: str
    operation: str
    target: str
    digest: str


async def find_request(tx: Tx, request: Request) -> tuple[str | None, str | None] | None:
    """(Turn, receipt) of the same request where it was admitted before.

    Raises:
        RequestConflict: the id was used for something else.
    """
    row = await tx.one(FIND_REQUEST, session=request.session, request_id=request.request_id)
    if row is None:
        return None
    for what in ("operation", "target", "digest"):
        if row[what] != getattr(request, what):
            named = "content" if what == "digest" else what
            raise RequestConflict(
                f"the request id {request.request_id!r} was used before with another {named}",
                where="request_id",
                next_step="send the original again to get its Turn, or use a new id for new work",
                details={"turn": row["turn"]} if row["turn"] is not None else None,
            )
    return row["turn"], row["receipt"]


async def put_request(
    tx: Tx, request: Request, *, turn: str | None, receipt: str | None, now: int
) -> None:
    await tx.later(
        PUT_REQUEST,
        session=request.session,
        request_id=request.request_id,
        operation=request.operation,
        digest=request.digest,
        target=request.target,
        turn=turn,
        receipt=receipt,
        now=now,
    )


@record
class Submit:
    """With an `opening` the Session is made first, where it does not exist."""

    thread: ThreadKey
    request_id: str
    digest: str
    content: Message
    turn: str
    now: int
    opening: OpenSession | None = None


@record
class Submitted:
    """`turn` is the original one where the request was `known`; `ready` names its definition."""

    turn: str
    known: bool
    ready: str | None = None


@record
class _End:
    """Where a Thread's queue ends, and whether it is empty."""

    definition: str
    idle: bool
    ordinal: int


@law("brain.submit", keys=lambda unit: (unit.thread.session_key.id,))
async def submit(tx: Tx, unit: Submit) -> Submitted:
    """Admit a Turn at the end of its Thread's queue."""
    made = None if unit.opening is None else await open_session.apply(tx, unit.opening)
    session = unit.thread.session_key.id
    thread = unit.thread.id
    request = Request(
        session=session,
        request_id=unit.request_id,
        operation="submit",
        target=thread,
        digest=unit.digest,
    )
    end = _End(definition=made, idle=True, ordinal=1) if made is not None else None
    if end is None:
        await tx.lock(LOCK, id=session)
        known = await find_request(tx, request)
        if known is not None:
            assert known[0] is not None
            return Submitted(turn=known[0], known=True)
        end = await _end_of(tx, session, thread)
    if end.idle:
        await tx.later(NEXT_AS_HEAD, id=thread, turn=unit.turn, now=unit.now)
    else:
        await tx.later(NEXT, id=thread)
    await tx.later(
        QUEUE,
        id=unit.turn,
        session=session,
        thread=thread,
        ordinal=end.ordinal,
        request_id=unit.request_id,
        input=orjson.dumps(unit.content.to_json()).decode(),
        now=unit.now,
    )
    await put_request(tx, request, turn=unit.turn, receipt=None, now=unit.now)
    said = NewEvent(
        type="message.user",
        thread=thread,
        turn=unit.turn,
        body={"request_id": unit.request_id, "input_kind": "submit"},
        said=(f"{unit.turn}.m0", unit.content),
    )
    queued = NewEvent(
        type="turn.queued", thread=thread, turn=unit.turn, body={"request_id": unit.request_id}
    )
    await events.append(tx, session, [queued, said], now=unit.now)
    return Submitted(turn=unit.turn, known=False, ready=end.definition if end.idle else None)


async def _end_of(tx: Tx, session: str, thread: str) -> _End:
    row = await tx.one(FIND_THREAD, id=thread)
    if row is None:
        if await tx.one(FIND_SESSION, id=session) is None:
            raise unknown_session(session)
        raise unknown_thread(thread)
    if row["state"] != "OPEN":
        raise closed(f"thread {thread}")
    return _End(
        definition=row["definition"], idle=row["phase"] == "IDLE", ordinal=row["next_ordinal"]
    )
