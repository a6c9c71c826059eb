"""Reads: none of them starts an agent, and each is one snapshot."""

from collections.abc import Sequence

from nerve.brain.ledger.cancel import FIND as FIND_TURN
from nerve.brain.ledger.cancel import unknown_turn
from nerve.brain.ledger.sessions import FIND as FIND_SESSION
from nerve.brain.ledger.sessions import FIND_THREAD, unknown_session, unknown_thread
from nerve.common.sql import Row, Tx, sql
from nerve.protocol.errors import BadInput
from nerve.protocol.updates import LedgerMark

PAGE_MAX = 1000

OUTCOME = sql("select id, phase, output, failure from turn where id = :id and thread = :thread")
INTENTS = sql("select * from intent where turn = :turn and thread = :thread order by ordinal")
OWN = "turn in (select id from turn where id = :turn and thread = :thread)"
"""A Turn of this Thread, and so of its Session and tenant: what hangs on a Turn is bound by it."""
RUNS = sql(f"select * from run where {OWN} and number > :after order by number limit :limit")
STEPS = sql(
    f"select * from step where {OWN} and (run > :run or (run = :run and number > :after))"
    " order by run, number limit :limit"
)
TURNS = sql(
    "select id, session, thread, ordinal, request_id, phase, created_at, started_at, ended_at"
    " from turn where thread = :thread and ordinal > :after order by ordinal limit :limit"
)
LATEST = sql(
    "select id, session, thread, ordinal, request_id, phase, created_at, started_at, ended_at"
    " from turn order by id desc limit :limit"
)
LATEST_OPEN = sql(
    "select id, session, thread, ordinal, request_id, phase, created_at, started_at, ended_at"
    " from turn where ended_at is null order by id desc limit :limit"
)
LATEST_OF = sql(
    "select t.id, t.session, t.thread, t.ordinal, t.request_id, t.phase, t.created_at, t.started_at,"
    " t.ended_at from turn t join session s on s.id = t.session where s.namespace = :namespace"
    " and (t.ended_at is null or :ended = 1) order by t.id desc limit :limit"
)
NEAR = sql("select id from turn where id >= :low and id < :high order by id limit 5")
EVENTS = sql(
    "select * from event where session = :session and sequence > :after"
    " order by sequence limit :limit"
)
HISTORY = sql(
    "select * from message where thread = :thread and sequence > :after"
    " order by sequence limit :limit"
)
RECEIPTS = sql(
    "select key, step, input_tokens, output_tokens, attempts, created_at from receipt"
    f" where {OWN} order by created_at, key"
)
LOCAL_CALLS = sql(
    "select r.key, r.step, r.body, r.created_at, j.step as applied_step, j.created_at as applied_at"
    " from receipt r left join journal j on j.thread = :thread and j.position = (select min(position)"
    " from journal where thread = :thread and turn = :turn and created_at >= r.created_at)"
    " where r.turn = :turn and exists (select 1 from turn where id = :turn and thread = :thread)"
    " and r.key like 'tool:%' order by r.created_at, r.key"
)
HANDS_LEDGERS = sql("select route, id, epoch, position from hands_ledger")
LIVE_HOSTS = sql("select id, role, pid, offers from host where state = 'LIVE' and role = :role")
OBSERVATIONS = sql("select * from observation where execution = :execution order by id limit 100")
OPEN_UNKNOWN = sql(
    "select * from intent where outcome = 'UNKNOWN' order by requested_at limit :limit"
)


KEPT_UPDATES = sql(
    "select k.execution, k.state, k.reason, k.tries from intent i"
    " join inbox k on k.execution = i.execution where i.turn = :turn and i.state = 'OPEN'"
    " and (k.state = 'QUARANTINED' or k.reason not like 'waits for sequence%')"
    " order by k.sequence"
)


async def turn(tx: Tx, id: str, *, thread: str | None = None) -> Row:
    """The Turn with its Thread's phase, head and owner, of `thread` where that is named.

    Raises UnknownTurn: where no Thread was named it may name near ones, which may be anybody's.
    """
    row = await tx.one(FIND_TURN, id=id)
    if thread is not None and (row is None or row["thread"] != thread):
        raise unknown_turn(id)
    if row is None:
        error = unknown_turn(id)
        start = id[:12]
        near = [each["id"] for each in await tx.all(NEAR, low=start, high=f"{start}~")]
        if near:
            error.next_step = f"did you mean {near[0]}?"
        raise error
    return row


async def outcome(tx: Tx, id: str, *, thread: str) -> Row:
    """(id, phase, output, failure) of a Turn of this Thread. Raises as `turn`."""
    return await tx.one(OUTCOME, id=id, thread=thread) or await turn(tx, id, thread=thread)


async def session(tx: Tx, id: str) -> Row:
    row = await tx.one(FIND_SESSION, id=id)
    if row is None:
        raise unknown_session(id)
    return row


async def thread(tx: Tx, id: str) -> Row:
    row = await tx.one(FIND_THREAD, id=id)
    if row is None:
        raise unknown_thread(id)
    return row


async def intents(tx: Tx, turn: str, thread: str) -> Sequence[Row]:
    return await tx.all(INTENTS, turn=turn, thread=thread)


async def kept_updates(tx: Tx, turn: str) -> Sequence[Row]:
    """Updates of a Turn that came and could not be recorded; those that only wait for others not."""
    return await tx.all(KEPT_UPDATES, turn=turn)


async def runs(tx: Tx, turn: str, thread: str, *, after: int, limit: int) -> Sequence[Row]:
    return await tx.all(RUNS, turn=turn, thread=thread, after=after, limit=checked(limit))


async def steps(
    tx: Tx, turn: str, thread: str, *, run: int, after: int, limit: int
) -> Sequence[Row]:
    return await tx.all(STEPS, turn=turn, thread=thread, run=run, after=after, limit=checked(limit))


async def turns(tx: Tx, thread: str, *, after: int, limit: int) -> Sequence[Row]:
    """The Turns of one Thread in admission order."""
    return await tx.all(TURNS, thread=thread, after=after, limit=checked(limit))


async def latest(
    tx: Tx, *, unfinished: bool, limit: int, namespace: str | None = None
) -> Sequence[Row]:
    """The newest Turns, of one tenant where it is named."""
    if namespace is not None:
        ended = 0 if unfinished else 1
        return await tx.all(LATEST_OF, namespace=namespace, ended=ended, limit=checked(limit))
    statement = LATEST_OPEN if unfinished else LATEST
    return await tx.all(statement, limit=checked(limit))


async def events(tx: Tx, session: str, *, after: int, limit: int) -> Sequence[Row]:
    return await tx.all(EVENTS, session=session, after=after, limit=checked(limit))


async def history(tx: Tx, thread: str, *, after: int, limit: int) -> Sequence[Row]:
    return await tx.all(HISTORY, thread=thread, after=after, limit=checked(limit))


async def receipts(tx: Tx, turn: str, thread: str) -> Sequence[Row]:
    return await tx.all(RECEIPTS, turn=turn, thread=thread)


async def local_calls(tx: Tx, turn: str, thread: str) -> Sequence[Row]:
    """The receipts of calls that ran inside Steps, and the checkpoint that followed each."""
    return await tx.all(LOCAL_CALLS, turn=turn, thread=thread)


async def live_hosts(tx: Tx, role: str) -> Sequence[Row]:
    return await tx.all(LIVE_HOSTS, role=role)


async def hands_ledgers(tx: Tx) -> dict[str, LedgerMark]:
    """The Hands ledger heard of last on each route."""
    return {
        row["route"]: LedgerMark(ledger_id=row["id"], epoch=row["epoch"], position=row["position"])
        for row in await tx.all(HANDS_LEDGERS)
    }


async def unknown_outcomes(tx: Tx, *, limit: int) -> Sequence[Row]:
    return await tx.all(OPEN_UNKNOWN, limit=checked(limit))


def checked(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(
            f"a page holds 1 to {PAGE_MAX}, not {limit}",
            where="limit",
            next_step="ask for less, and go on from the cursor",
        )
    return limit
