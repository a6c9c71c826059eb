"""Ownership of a Thread: claimed while READY, fenced by (host, token), released when the host died."""

from collections.abc import Sequence

from nerve.brain.ledger import events
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.sessions import LOCK as LOCK_SESSION
from nerve.brain.state.run import STEP_OF_RUN, RunState
from nerve.brain.state.turn import Settle
from nerve.common.lease import require_live
from nerve.common.record import record
from nerve.common.sql import ALONE, Again, Row, Tx, law, sql
from nerve.protocol.execution import ExecutionResult
from nerve.protocol.identity import ThreadKey, run_id, step_id

CLAIM = sql(
    "update thread set phase = 'RUNNING', host = :host, token = token + 1, claimed_at = :now"
    " where phase = 'READY' and id in (select id from thread where definition = :definition"
    " and phase = 'READY' and ready_at <= :now order by ready_at limit :limit)"
    " returning id, session, head, token, position, digest, definition",
    server="with free as (select h.id as free_id from thread h join session s on s.id = h.session"
    " where h.definition = :definition and h.phase = 'READY' and h.ready_at <= :now"
    " order by h.ready_at limit :limit for update of s, h skip locked)"
    " update thread set phase = 'RUNNING', host = :host, token = token + 1, claimed_at = :now"
    " from free where id = free_id"
    " returning id, session, head, token, position, digest, definition",
)
# Others hold what is READY at this moment. With one writer nobody does.
HELD = sql(
    "select 1 where :definition is null and :now is null",
    server="select 1 from thread where definition = :definition and phase = 'READY'"
    " and ready_at <= :now limit 1",
)
RESUME = sql(
    "update thread set phase = 'RUNNING', host = :host, token = token + 1, claimed_at = :now"
    " where id = :id and head = :turn and token = :token and phase = 'WAITING'"
)
RESUME_TURN = sql(
    "update turn set phase = case when settle is null then 'RUNNING' else 'SETTLING' end,"
    " runs = runs + 1, open_count = open_count - 1, retry_at = null where id = :id"
)
RUN_TURN = sql(
    "update turn set phase = case when settle is null then 'RUNNING' else 'SETTLING' end,"
    " runs = runs + 1, started_at = coalesce(started_at, :now), retry_at = null"
    " where id = :id returning id, input, iterations, runs, calls, said, open_count,"
    " settle, failure, lost_step, retry_policy, retry_count"
)
UNAPPLIED = sql(
    "select execution, call_id, tool, state, outcome, effect, result"
    " from intent where turn = :turn and state <> 'APPLIED' order by ordinal"
)
OWNED = sql(
    "select id, session, head, token, claimed_at from thread"
    " where phase = 'RUNNING' and host = :host"
)
LOCK_OWNED = sql(
    "select 1 from session s join thread h on h.session = s.id"
    " where h.phase = 'RUNNING' and h.host = :host order by s.id for update of s"
)
TAKE_BACK = sql(
    "update thread set phase = 'READY', host = null, token = token + 1, ready_at = :ready_at"
    " where id = :id and host = :host and token = :token"
)
LOSE_TURN = sql(
    "update turn set lost_step = :step, retry_at = :retry_at,"
    " retry_reason = coalesce(:reason, retry_reason),"
    " phase = case when settle is null then 'WAITING' else 'SETTLING' end where id = :id"
)
PUT_RUN = sql(
    "insert into run (turn, number, host, token, state, reason, started_at, ended_at)"
    " values (:turn, :number, :host, :token, :state, :reason, :started_at, :now)"
    " on conflict (turn, number) do nothing"
)
PUT_STEP = sql(
    "insert into step"
    " (turn, run, number, phase, state, resumed_from, position, started_at, ended_at)"
    " values (:turn, :run, :number, :phase, :state, :resumed_from, :position, :started_at, :now)"
    " on conflict (turn, run, number) do nothing"
)
COUNT_STEPS = sql("select count(*) as steps from step where turn = :turn and run = :run")


@record
class Unapplied:
    """An intent of a Turn that no checkpoint contains yet; `read` is its result, already parsed."""

    execution: str
    call_id: str
    tool: str
    state: str
    outcome: str
    effect: str
    result: bytes | None
    read: ExecutionResult | None = None


@record
class Claimed:
    """A Thread that this host now owns, with everything its head Turn needs to go on."""

    thread: str
    session: str
    definition: str
    token: int
    position: int
    digest: str
    turn: str
    first: bool
    run: int
    input: str
    iterations: int
    calls: int
    said: int
    open_count: int
    settle: Settle | None
    failure: str | None
    lost_step: str | None
    retry_policy: str | None
    retry_count: int
    unapplied: Sequence[Unapplied]
    claimed_at: int


@record
class Claim:
    """Up to `limit` Threads pinned to one definition."""

    host: str
    definition: str
    limit: int
    now: int


@law("brain.claim", keys=lambda unit: (f"claim:{unit.definition}", ALONE))
async def claim(tx: Tx, unit: Claim) -> list[Claimed]:
    if not await require_live(tx, unit.host):
        return []
    rows = await tx.all(
        CLAIM, host=unit.host, definition=unit.definition, limit=unit.limit, now=unit.now
    )
    if not rows and await tx.one(HELD, definition=unit.definition, now=unit.now) is not None:
        raise Again([])
    return await tx.gather([take(tx, row, now=unit.now) for row in rows])


async def resume(tx: Tx, seen: Row, arrived: Unapplied, *, host: str, now: int) -> Claimed:
    """Claim a Thread that waited for `arrived`, inside the law that read (and locked) all of `seen`."""
    taken = await tx.run(
        RESUME, id=seen["thread"], turn=seen["turn"], token=seen["token"], host=host, now=now
    )
    assert taken, seen["thread"]
    await tx.run(RESUME_TURN, id=seen["turn"])
    unapplied = [arrived] if seen["unapplied"] == 1 else await _unapplied(tx, seen["turn"])
    return Claimed(
        thread=seen["thread"],
        session=seen["session"],
        definition=seen["definition"],
        token=seen["token"] + 1,
        position=seen["position"],
        digest=seen["digest"],
        turn=seen["turn"],
        first=False,
        run=seen["runs"] + 1,
        input=seen["input"],
        iterations=seen["iterations"],
        calls=seen["calls"],
        said=seen["said"],
        open_count=seen["open_count"] - 1,
        settle=None if seen["settle"] is None else Settle(seen["settle"]),
        failure=seen["failure"],
        lost_step=seen["lost_step"],
        retry_policy=seen["retry_policy"],
        retry_count=seen["retry_count"],
        unapplied=unapplied,
        claimed_at=now,
    )


async def _unapplied(tx: Tx, turn: str) -> list[Unapplied]:
    return [
        Unapplied(
            execution=row["execution"],
            call_id=row["call_id"],
            tool=row["tool"],
            state=row["state"],
            outcome=row["outcome"],
            effect=row["effect"],
            result=row["result"],
        )
        for row in await tx.all(UNAPPLIED, turn=turn)
    ]


async def take(tx: Tx, thread: Row, *, now: int) -> Claimed:
    """Start the next Run of the head of a Thread that was just claimed."""
    turn = await tx.one(RUN_TURN, id=thread["head"], now=now)
    assert turn is not None, thread["head"]
    first = turn["runs"] == 1
    if first:
        started = NewEvent(type="turn.started", thread=thread["id"], turn=turn["id"])
        await events.append(tx, thread["session"], [started], now=now)
    unapplied = await _unapplied(tx, turn["id"]) if turn["calls"] else ()
    return Claimed(
        thread=thread["id"],
        session=thread["session"],
        definition=thread["definition"],
        token=thread["token"],
        position=thread["position"],
        digest=thread["digest"],
        turn=turn["id"],
        first=first,
        run=turn["runs"],
        input=turn["input"],
        iterations=turn["iterations"],
        calls=turn["calls"],
        said=turn["said"],
        open_count=turn["open_count"],
        settle=None if turn["settle"] is None else Settle(turn["settle"]),
        failure=turn["failure"],
        lost_step=turn["lost_step"],
        retry_policy=turn["retry_policy"],
        retry_count=turn["retry_count"],
        unapplied=unapplied,
        claimed_at=now,
    )


async def release_threads(tx: Tx, host: str, now: int) -> None:
    """Inside the release of a host: its Threads are READY again, its Runs and Steps are LOST."""
    await tx.lock(LOCK_OWNED, host=host)
    for row in await tx.all(OWNED, host=host):
        await lose(
            tx, row, host=host, state=RunState.LOST, reason="its host died", now=now, ready_at=now
        )


async def lose(
    tx: Tx, row: Row, *, host: str, state: RunState, reason: str, now: int, ready_at: int
) -> bool:
    """Give a Thread back without an outcome, and write down the Run that will not return."""
    if not await tx.run(TAKE_BACK, id=row["id"], host=host, token=row["token"], ready_at=ready_at):
        return False
    number = await _next_step(tx, row["head"])
    turn, run = row["head"], number[0]
    step = step_id(run_id(turn, run), number[1])
    waits = ready_at > now
    await tx.run(
        LOSE_TURN,
        id=turn,
        step=step,
        retry_at=ready_at if waits else None,
        reason=reason if waits else None,
    )
    await tx.later(
        PUT_RUN,
        turn=turn,
        number=run,
        host=host,
        token=row["token"],
        state=state.value,
        reason=reason,
        started_at=row["claimed_at"],
        now=now,
    )
    await tx.later(
        PUT_STEP,
        turn=turn,
        run=run,
        number=number[1],
        phase="ADVANCE",
        state=STEP_OF_RUN[state].value,
        resumed_from=None,
        position=None,
        started_at=row["claimed_at"],
        now=now,
    )
    lost = NewEvent(
        type="turn.recovery",
        thread=row["id"],
        turn=turn,
        run=run_id(turn, run),
        body={"reason": reason, "step_id": step},
    )
    await events.append(tx, row["session"], [lost], now=now)
    return True


CURRENT_RUN = sql("select runs from turn where id = :id")


async def _next_step(tx: Tx, turn: str) -> tuple[int, int]:
    current = await tx.one(CURRENT_RUN, id=turn)
    assert current is not None
    counted = await tx.one(COUNT_STEPS, turn=turn, run=current["runs"])
    assert counted is not None
    return current["runs"], counted["steps"] + 1


def session_of(thread: str) -> str:
    return ThreadKey.parse(thread).session_key.id


@record
class GiveBack:
    """Hand one owned Thread over, or resume-or-release what nobody runs here any more."""

    thread: str
    host: str
    token: int
    reason: str
    ready_at: int
    now: int


FIND_OWNED = sql(
    "select id, session, head, token, claimed_at from thread"
    " where id = :id and phase = 'RUNNING' and host = :host and token = :token"
)


@law("brain.give_back", keys=lambda unit: (session_of(unit.thread),))
async def give_back(tx: Tx, unit: GiveBack) -> bool:
    await tx.lock(LOCK_SESSION, id=session_of(unit.thread))
    row = await tx.one(FIND_OWNED, id=unit.thread, host=unit.host, token=unit.token)
    if row is None:
        return False
    return await lose(
        tx,
        row,
        host=unit.host,
        state=RunState.HANDED_OVER,
        reason=unit.reason,
        now=unit.now,
        ready_at=unit.ready_at,
    )


async def owned(tx: Tx, host: str) -> dict[str, int]:
    """Thread ids that `host` owns, with their tokens."""
    return {row["id"]: row["token"] for row in await tx.all(OWNED, host=host)}
