"""Public events: one gapless sequence per Session, committed with the state they tell of."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import orjson

from nerve.common.record import record
from nerve.common.sql import Tx, sql
from nerve.protocol.content import Message

ADVANCE = sql("update session set sequence = sequence + :count where id = :id returning sequence")
APPEND = sql(
    "insert into event (session, sequence, thread, turn, run, type, body, created_at)"
    " values (:session, :sequence, :thread, :turn, :run, :type, :body, :now)"
)
SAY = sql(
    "insert into message (session, sequence, thread, turn, message, role, body, created_at)"
    " values (:session, :sequence, :thread, :turn, :message, :role, :body, :now)"
)


@record
class NewEvent:
    """One public fact. `said` also enters the history, under its message id."""

    type: str
    thread: str | None = None
    turn: str | None = None
    run: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    said: tuple[str, Message] | None = None


async def append(tx: Tx, session: str, events: Sequence[NewEvent], *, now: int) -> None:
    """Number and write `events` at the end of the Session's sequence."""
    if not events:
        return
    row = await tx.one(ADVANCE, id=session, count=len(events))
    if row is None:
        raise AssertionError(f"session {session} has no row, and its thread has")
    await write(tx, session, events, first=int(row["sequence"]) - len(events) + 1, now=now)


async def write(tx: Tx, session: str, events: Sequence[NewEvent], *, first: int, now: int) -> None:
    """Write `events` under numbers that the Session's row has counted by now."""
    rows: list[dict[str, Any]] = []
    for sequence, event in enumerate(events, first):
        body = event.body
        if event.said is not None:
            body = await _say(tx, session, sequence, event, event.said, now)
        rows.append(
            {
                "session": session,
                "sequence": sequence,
                "thread": event.thread,
                "turn": event.turn,
                "run": event.run,
                "type": event.type,
                "body": orjson.dumps(body).decode(),
                "now": now,
            }
        )
    await tx.many(APPEND, rows)


async def _say(
    tx: Tx,
    session: str,
    sequence: int,
    event: NewEvent,
    said: tuple[str, Message],
    now: int,
) -> dict[str, Any]:
    """Write what was said into the history, and return the event's whole body."""
    message, content = said
    written = content.to_json()
    await tx.later(
        SAY,
        session=session,
        sequence=sequence,
        thread=event.thread,
        turn=event.turn,
        message=message,
        role=content.role.value,
        body=orjson.dumps(written).decode(),
        now=now,
    )
    return {**event.body, "message_id": message, "message": written}
