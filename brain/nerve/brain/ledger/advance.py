"""The one transaction that commits what an agent decided: fence, checkpoint, intents, events, outbox.

The fenced statement is the first write. A stale owner's unit finds no row to change and writes
nothing at all, whatever it carries.
"""

from collections.abc import Sequence

from nerve.brain.ledger import events
from nerve.brain.ledger.claim import PUT_RUN, PUT_STEP
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.sessions import LOCK as LOCK_SESSION
from nerve.brain.ledger.step_unit import SETTLE, Advance, Next, Verdict
from nerve.brain.state.run import RunState, StepState
from nerve.brain.state.thread import ThreadPhase
from nerve.brain.state.turn import TERMINAL, TurnPhase
from nerve.common.large import refer
from nerve.common.outbox import put
from nerve.common.sql import Tx, law, sql
from nerve.protocol.objects import ObjectRef

TURN = sql("select cancel_requested_at, open_count from turn where id = :id")
FENCE = sql(
    "update thread set phase = :phase, host = :next_host, head = :head, ready_at = :ready_at,"
    " position = :position, digest = :digest"
    " where id = :id and host = :host and token = :token and phase = 'RUNNING'"
)
FENCE_LAST = sql(
    "update thread set phase = 'IDLE', host = null, head = null, ready_at = 0,"
    " position = :position, digest = :digest"
    " where id = :id and host = :host and token = :token and phase = 'RUNNING'"
    " and next_ordinal = 1 + (select ordinal from turn where id = :turn)"
)
NEXT_TURN = sql(
    "select id from turn where thread = :thread and ordinal > (select ordinal from turn"
    " where id = :turn) and ended_at is null order by ordinal limit 1"
)
JOURNAL = sql(
    "insert into journal"
    " (thread, position, turn, step, entries, state, digest, codec, settled, created_at)"
    " values (:thread, :position, :turn, :step, :entries, :state, :digest, :codec, :settled, :now)"
)
PUT_RECEIPT = sql(
    "insert into receipt (turn, key, step, body, codec, input_tokens, output_tokens, attempts,"
    " created_at) values (:turn, :key, :step, :body, 'plain', :input_tokens, :output_tokens,"
    " :attempts, :now) on conflict (turn, key) do nothing"
)
PUT_INTENT = sql(
    "insert into intent (execution, turn, thread, session, ordinal, call_id, kind, tool, route,"
    " arguments, command, codec, state, outcome, effect, attempt, sequence, origin_step,"
    " requested_at, inquiries, next_inquiry_at, settled)"
    " values (:execution, :turn, :thread, :session, :ordinal, :call_id, :kind, :tool, :route,"
    " :arguments, :command, 'plain', 'OPEN', 'REQUESTED', 'none', 0, 0, :origin_step,"
    " :now, 0, :next_inquiry_at, 0)"
)
APPLY = sql(
    "update intent set state = 'APPLIED', applied_at = :now, applied_step = :step"
    " where execution = :execution and state = 'RECEIVED'"
)
GO_ON = sql(
    "update turn set phase = :phase, iterations = iterations + :iterations, calls = :calls, said = :said,"
    " open_count = open_count + :opened, wait_mode = :wait_mode, lost_step = :lost_step,"
    " settle = :settle, failure = :failure where id = :id"
)
RETRY_TURN = sql(
    "update turn set phase = 'WAITING', retry_policy = :policy, retry_count = :count,"
    " retry_at = :at, retry_reason = :reason, lost_step = :lost_step where id = :id"
)
END_TURN = sql(
    "update turn set phase = :phase, iterations = iterations + :iterations, said = :said, output = :output,"
    " failure = :failure, retry_at = null, ended_at = :now where id = :id"
)
RECEIVED = sql("select count(*) as received from intent where turn = :turn and state = 'RECEIVED'")


@law("brain.advance", keys=lambda unit: (unit.at.session, unit.at.turn))
async def advance(tx: Tx, unit: Advance) -> Verdict:
    await tx.lock(LOCK_SESSION, id=unit.at.session)
    phase = await _fence(tx, unit)
    if isinstance(phase, Verdict):
        return phase
    await refer(tx, _referred(unit), now=unit.now)
    await _write_checkpoint(tx, unit)
    await _write_intents(tx, unit)
    await _write_turn(tx, unit)
    await _write_run(tx, unit)
    await events.append(tx, unit.at.session, _events(unit), now=unit.now)
    await put(tx, unit.outgoing, host=unit.at.host, now=unit.now, relay=unit.relay)
    return Verdict.READY if phase is ThreadPhase.READY else Verdict.COMMITTED


async def _fence(tx: Tx, unit: Advance) -> ThreadPhase | Verdict:
    """Leave the Thread as this unit leaves it, where its owner speaks and may; else say why not."""
    at, checkpoint = unit.at, unit.checkpoint
    position = at.position if checkpoint is None else checkpoint.position
    digest = at.digest if checkpoint is None else checkpoint.digest
    if unit.next in _ENDS and await tx.run(
        FENCE_LAST,
        id=at.thread,
        turn=at.turn,
        host=at.host,
        token=at.token,
        position=position,
        digest=digest,
    ):
        return ThreadPhase.IDLE
    turn = await tx.one(TURN, id=at.turn)
    assert turn is not None
    if turn["cancel_requested_at"] is not None and unit.next in _STOPPABLE:
        return Verdict.CANCEL_FIRST
    phase, head, ready_at = await _thread_after(tx, unit, open_count=turn["open_count"])
    fenced = await tx.run(
        FENCE,
        id=at.thread,
        host=at.host,
        token=at.token,
        phase=phase.value,
        next_host=at.host if phase is ThreadPhase.RUNNING else None,
        head=head,
        ready_at=ready_at,
        position=position,
        digest=digest,
    )
    return phase if fenced else Verdict.FENCED


async def _thread_after(
    tx: Tx, unit: Advance, *, open_count: int
) -> tuple[ThreadPhase, str | None, int]:
    """(phase, head, ready_at) of the Thread once this unit is committed."""
    if unit.next is Next.CONTINUE:
        return ThreadPhase.RUNNING, unit.at.turn, 0
    if unit.next is Next.RETRY:
        assert unit.retry is not None
        return ThreadPhase.READY, unit.at.turn, unit.retry.at
    if unit.next in (Next.PARK, Next.SETTLE):
        waits = open_count + len(unit.intents) > 0
        if unit.next is Next.PARK and unit.wait_mode == "ANY" and waits:
            row = await tx.one(RECEIVED, turn=unit.at.turn)
            waits = row is None or row["received"] <= len(unit.applied)
        return (ThreadPhase.WAITING if waits else ThreadPhase.READY), unit.at.turn, unit.now
    following = await tx.one(NEXT_TURN, thread=unit.at.thread, turn=unit.at.turn)
    if following is None:
        return ThreadPhase.IDLE, None, 0
    return ThreadPhase.READY, following["id"], unit.now


def _referred(unit: Advance) -> Sequence[ObjectRef]:
    if unit.checkpoint is None or unit.checkpoint.ref is None:
        return unit.objects
    return [*unit.objects, unit.checkpoint.ref]


async def _write_checkpoint(tx: Tx, unit: Advance) -> None:
    step = unit.at.step_id
    if unit.checkpoint is not None:
        entries, state, codec = unit.checkpoint.stored
        await tx.later(
            JOURNAL,
            thread=unit.at.thread,
            position=unit.checkpoint.position,
            turn=unit.at.turn,
            step=step,
            entries=entries,
            state=state,
            codec=codec,
            digest=unit.checkpoint.digest,
            settled=1 if unit.next in (Next.FINISH, Next.FAIL, Next.SETTLED) else 0,
            now=unit.now,
        )
    for receipt in unit.receipts:
        await tx.later(
            PUT_RECEIPT,
            turn=unit.at.turn,
            key=receipt.key,
            step=step,
            body=receipt.body,
            input_tokens=receipt.input_tokens,
            output_tokens=receipt.output_tokens,
            attempts=receipt.attempts,
            now=unit.now,
        )
    for execution in unit.applied:
        await tx.later(APPLY, execution=execution, step=step, now=unit.now)


async def _write_intents(tx: Tx, unit: Advance) -> None:
    for intent in unit.intents:
        await tx.later(
            PUT_INTENT,
            execution=intent.execution,
            turn=unit.at.turn,
            thread=unit.at.thread,
            session=unit.at.session,
            ordinal=intent.ordinal,
            call_id=intent.call_id,
            kind=intent.kind,
            tool=intent.tool,
            route=intent.route,
            arguments=intent.arguments,
            command=intent.command,
            origin_step=unit.at.step_id,
            next_inquiry_at=intent.next_inquiry_at,
            now=unit.now,
        )


async def _write_turn(tx: Tx, unit: Advance) -> None:
    if unit.next is Next.RETRY:
        assert unit.retry is not None
        await tx.later(
            RETRY_TURN,
            id=unit.at.turn,
            policy=unit.retry.policy,
            count=unit.retry.count,
            at=unit.retry.at,
            reason=unit.retry.reason,
            lost_step=unit.at.step_id,
        )
        return
    if unit.next in (Next.CONTINUE, Next.PARK, Next.SETTLE):
        phase = {
            Next.CONTINUE: TurnPhase.RUNNING,
            Next.PARK: TurnPhase.WAITING,
            Next.SETTLE: TurnPhase.SETTLING,
        }[unit.next]
        await tx.later(
            GO_ON,
            id=unit.at.turn,
            phase=phase.value,
            iterations=unit.iterations,
            calls=unit.calls,
            said=unit.said,
            opened=len(unit.intents),
            wait_mode=unit.wait_mode,
            lost_step=None,
            settle=unit.settle.value if unit.settle is not None else None,
            failure=unit.failure,
        )
        return
    assert unit.end in TERMINAL
    await tx.later(
        END_TURN,
        id=unit.at.turn,
        phase=unit.end.value,
        iterations=unit.iterations,
        said=unit.said,
        output=unit.output,
        failure=unit.failure,
        now=unit.now,
    )


_ENDS = frozenset({Next.FINISH, Next.FAIL, Next.SETTLED})
_STOPPABLE = frozenset({Next.PARK, Next.CONTINUE, Next.RETRY})
_RUN_AFTER = {
    Next.PARK: RunState.PARKED,
    Next.FINISH: RunState.FINISHED,
    Next.FAIL: RunState.FAILED,
    Next.RETRY: RunState.RETRYING,
    Next.SETTLE: RunState.FAILED,
    Next.SETTLED: RunState.FAILED,
}


async def _write_run(tx: Tx, unit: Advance) -> None:
    """Settling needs no Run; a Run that goes on is written when it ends."""
    if unit.at.phase == SETTLE:
        return
    state = _RUN_AFTER.get(unit.next)
    failed = unit.next in (Next.RETRY, Next.FAIL, Next.SETTLE, Next.SETTLED)
    if state is not None:
        await tx.later(
            PUT_RUN,
            turn=unit.at.turn,
            number=unit.at.run,
            host=unit.at.host,
            token=unit.at.token,
            state=state.value,
            reason=None if unit.retry is None else unit.retry.reason,
            started_at=unit.at.run_started_at,
            now=unit.now,
        )
    await tx.later(
        PUT_STEP,
        turn=unit.at.turn,
        run=unit.at.run,
        number=unit.at.step,
        phase=unit.at.phase,
        state=(StepState.FAILED if failed else StepState.COMPLETED).value,
        resumed_from=unit.at.resumed_from,
        position=None if unit.checkpoint is None else unit.checkpoint.position,
        started_at=unit.at.step_started_at,
        now=unit.now,
    )


def _events(unit: Advance) -> list[NewEvent]:
    run = unit.at.run_id
    step = unit.at.step_id
    facts = [
        NewEvent(
            type="tool.applied",
            thread=unit.at.thread,
            turn=unit.at.turn,
            run=run,
            body={"execution_id": execution, "applied_at": {"run": run, "step": step}},
        )
        for execution in unit.applied
    ]
    facts += unit.messages
    facts += [
        NewEvent(
            type="tool.requested",
            thread=unit.at.thread,
            turn=unit.at.turn,
            run=run,
            body={
                "call_id": intent.call_id,
                "tool": intent.tool,
                "execution_id": intent.execution,
                "kind": intent.kind,
                "step_id": step,
            },
        )
        for intent in unit.intents
    ]
    return facts + list(unit.public)
