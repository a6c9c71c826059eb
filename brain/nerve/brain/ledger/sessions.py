"""Sessions and Threads: made together with their first facts, closed only when nothing is open."""

from dataclasses import dataclass

from nerve.brain.ledger import definitions, events
from nerve.brain.ledger.events import NewEvent
from nerve.brain.state.checkpoint import GENESIS
from nerve.common.record import record
from nerve.common.sql import Tx, law, sql
from nerve.protocol.errors import Conflict, UnknownSession, UnknownThread, WrongState
from nerve.protocol.identity import MAIN_THREAD, SessionKey

FIND = sql("select * from session where id = :id")
LOCK = sql("select 1 from session where id = :id for update")
"""On servers, everything in a Session is decided under the lock of its row, taken first."""
MAKE = sql(
    "insert into session (id, namespace, name, state, agent, sequence, pruned, created_at)"
    " values (:id, :namespace, :name, 'OPEN', :agent, :sequence, 0, :now)"
)
FIND_THREAD = sql("select * from thread where id = :id")
MAKE_THREAD = sql(
    "insert into thread (id, session, name, definition, state, phase, head, next_ordinal,"
    " ready_at, token, position, digest, created_at)"
    " values (:id, :session, :name, :definition, 'OPEN', 'IDLE', null, 1, 0, 0, 0, :digest, :now)"
)
OPEN_TURNS = sql(
    "select head as id from thread where session = :session and head is not null order by id limit 5"
)
OPEN_TURNS_OF_THREAD = sql(
    "select t.id from turn t where t.thread = :thread and t.ended_at is null"
    " order by t.ordinal limit 5"
)
THREADS = sql("select id, state from thread where session = :session order by created_at, id")
CLOSE = sql("update session set state = 'CLOSED', closed_at = :now where id = :id")
CLOSE_THREAD = sql("update thread set state = 'CLOSED', closed_at = :now where id = :id")


@record
class OpenSession:
    """`agent` None: the Session must exist."""

    key: SessionKey
    agent: str | None
    version: str | None
    now: int


@law("brain.open_session", keys=lambda unit: (unit.key.id,))
async def open_session(tx: Tx, unit: OpenSession) -> str | None:
    """Make the Session with its main Thread, or find it; finding adds no event.

    Returns the definition that the new Thread pins; None where the Session was there.

    Raises:
        UnknownSession: it does not exist and no agent was named.
        UnknownAgent: no host has offered the agent.
        Conflict: it exists for another agent.
    """
    row = await tx.one(FIND, id=unit.key.id)
    if row is not None:
        if unit.agent is not None and row["agent"] != unit.agent:
            raise Conflict(
                f"the session {unit.key} belongs to the agent {row['agent']}",
                where="agent",
                next_step="name another session for another agent",
            )
        return None
    if unit.agent is None:
        raise unknown_session(str(unit.key))
    definition = await definitions.resolve(tx, unit.agent, unit.version)
    thread = unit.key.thread().id
    facts = [
        NewEvent(type="session.created", body={"agent": unit.agent}),
        NewEvent(type="thread.created", thread=thread, body={"name": MAIN_THREAD}),
    ]
    await tx.run(
        MAKE,
        id=unit.key.id,
        namespace=unit.key.namespace,
        name=unit.key.session,
        agent=unit.agent,
        sequence=len(facts),
        now=unit.now,
    )
    await _make_thread(tx, unit.key, MAIN_THREAD, definition, unit.now)
    await events.write(tx, unit.key.id, facts, first=1, now=unit.now)
    return definition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenThread:
    key: SessionKey
    name: str
    agent: str | None
    version: str | None
    now: int


@law("brain.open_thread", keys=lambda unit: (unit.key.id,))
async def open_thread(tx: Tx, unit: OpenThread) -> None:
    """Make another Thread of a Session, or find it. Without an agent it is the Session's own."""
    await tx.lock(LOCK, id=unit.key.id)
    session = await tx.one(FIND, id=unit.key.id)
    if session is None:
        raise unknown_session(str(unit.key))
    thread = unit.key.thread(unit.name).id
    agent = unit.agent or session["agent"]
    row = await tx.one(FIND_THREAD, id=thread)
    if row is not None:
        pinned = definitions.parse_definition(row["definition"])
        if unit.agent is not None and pinned.agent != unit.agent:
            raise Conflict(
                f"the thread {thread} belongs to the agent {pinned.agent}",
                where="agent",
                next_step="name another thread for another agent",
            )
        return
    if session["state"] != "OPEN":
        raise closed(f"session {unit.key}")
    definition = await definitions.resolve(tx, agent, unit.version)
    await _make_thread(tx, unit.key, unit.name, definition, unit.now)
    made = NewEvent(type="thread.created", thread=thread, body={"name": unit.name})
    await events.append(tx, unit.key.id, [made], now=unit.now)


async def _make_thread(tx: Tx, key: SessionKey, name: str, definition: str, now: int) -> None:
    await tx.run(
        MAKE_THREAD,
        id=key.thread(name).id,
        session=key.id,
        name=name,
        definition=definition,
        digest=GENESIS,
        now=now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """`thread` None closes the whole Session."""

    key: SessionKey
    thread: str | None
    now: int


@law("brain.close", keys=lambda unit: (unit.key.id,))
async def close(tx: Tx, unit: Close) -> None:
    """Refused while a Turn is unfinished, and then it cancels nothing. Closing twice is one close."""
    await tx.lock(LOCK, id=unit.key.id)
    session = await tx.one(FIND, id=unit.key.id)
    if session is None:
        raise unknown_session(str(unit.key))
    if unit.thread is not None:
        await _close_thread(tx, unit.key, unit.thread, unit.now)
        return
    if session["state"] == "CLOSED":
        return
    _refuse_unfinished([row["id"] for row in await tx.all(OPEN_TURNS, session=unit.key.id)])
    await tx.run(CLOSE, id=unit.key.id, now=unit.now)
    facts = [
        NewEvent(type="thread.closed", thread=row["id"])
        for row in await tx.all(THREADS, session=unit.key.id)
        if row["state"] == "OPEN"
    ]
    for fact in facts:
        await tx.run(CLOSE_THREAD, id=fact.thread, now=unit.now)
    facts.append(NewEvent(type="session.closed"))
    await events.append(tx, unit.key.id, facts, now=unit.now)


async def _close_thread(tx: Tx, key: SessionKey, name: str, now: int) -> None:
    id = key.thread(name).id
    row = await tx.one(FIND_THREAD, id=id)
    if row is None:
        raise unknown_thread(id)
    if row["state"] == "CLOSED":
        return
    _refuse_unfinished([each["id"] for each in await tx.all(OPEN_TURNS_OF_THREAD, thread=id)])
    await tx.run(CLOSE_THREAD, id=id, now=now)
    await events.append(tx, key.id, [NewEvent(type="thread.closed", thread=id)], now=now)


def _refuse_unfinished(turns: list[str]) -> None:
    if turns:
        raise WrongState(
            f"it has unfinished Turns: {', '.join(turns)}",
            where="close",
            next_step="wait for them or cancel them; closing cancels nothing",
        )


def unknown_session(name: str) -> UnknownSession:
    return UnknownSession(
        f"there is no session {name}",
        where="session",
        next_step="`nerve ls` lists what is there; naming an agent creates it",
    )


def unknown_thread(name: str) -> UnknownThread:
    return UnknownThread(f"there is no thread {name}", where="thread", next_step="create it first")


def closed(what: str) -> WrongState:
    return WrongState(
        f"the {what} is closed", where="state", next_step="use another one: closing is final"
    )
