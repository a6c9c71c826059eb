"""From what a harness returned to the unit that commits it: pure, apart from sealing messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nerve.brain.harness import (
    Checkpoint,
    Failed,
    Finished,
    Frame,
    Harness,
    Parked,
    ToolCall,
    ToolOutcome,
)
from nerve.brain.ledger.claim import Claimed, Unapplied
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.step_unit import (
    Advance,
    NewCheckpoint,
    NewIntent,
    Next,
    Place,
)
from nerve.brain.schedule.run_host import RunHost, within_limit
from nerve.brain.state.checkpoint import chained
from nerve.brain.state.turn import Settle, TurnPhase
from nerve.brain.tools.messages import Messages
from nerve.common.outbox import OutboxRow, Relay
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.content import Message
from nerve.protocol.errors import UnknownTool
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, told
from nerve.protocol.identity import Origin, ThreadKey, execution_id
from nerve.protocol.objects import ObjectRef

CANCELLED = "the Turn was cancelled"


def outcomes(unapplied: Sequence[Unapplied]) -> list[ToolOutcome]:
    """The received results among a Turn's unapplied intents."""
    return [_outcome(intent) for intent in unapplied if intent.state == "RECEIVED"]


def _outcome(intent: Unapplied) -> ToolOutcome:
    result = intent.read
    if result is None and intent.result:
        result = ExecutionResult.model_validate_json(intent.result)
    state, effect = ExecutionState(intent.outcome), Effect(intent.effect)
    return ToolOutcome(
        call_id=intent.call_id,
        tool=intent.tool,
        execution=intent.execution,
        state=state,
        effect=effect,
        value=None if result is None else result.value,
        text=told(state, effect, result),
    )


def waiting(unapplied: Sequence[Unapplied]) -> list[str]:
    return [intent.call_id for intent in unapplied if intent.state == "OPEN"]


def sealed_checkpoint(checkpoint: Checkpoint, frame: Frame, digest: str) -> NewCheckpoint:
    """Canonical bytes and the chained digest of what comes after `digest`."""
    entries = canonical_bytes(list(checkpoint.entries))
    state = canonical_bytes(checkpoint.state)
    return NewCheckpoint(
        position=frame.position + 1,
        entries=entries,
        state=state,
        digest=chained(digest, entries, state),
    )


def place(claimed: Claimed, *, host: str, step: int, phase: str = "ADVANCE") -> Place:
    """Where a Step of this claim stands."""
    return Place(
        thread=claimed.thread,
        session=claimed.session,
        turn=claimed.turn,
        host=host,
        token=claimed.token,
        run=claimed.run,
        step=step,
        run_started_at=claimed.claimed_at,
        step_started_at=claimed.claimed_at,
        resumed_from=claimed.lost_step if step == 1 else None,
        position=claimed.position,
        digest=claimed.digest,
        phase=phase,
    )


def parked(
    at: Place,
    outcome: Parked,
    *,
    claimed: Claimed,
    agent: Harness,
    host: RunHost,
    checkpoint: NewCheckpoint,
    messages: Messages,
    relay: Relay,
    first_inquiry_ms: int,
    now: int,
    stowed: Mapping[str, ObjectRef],
) -> Advance:
    """`stowed`: where large arguments stand, by execution."""
    intents, outgoing = _intents(
        at, outcome.calls, claimed, agent, messages, first_inquiry_ms, now, stowed
    )
    return Advance(
        at=at,
        next=Next.PARK,
        now=now,
        checkpoint=checkpoint,
        receipts=[host.sealed(receipt) for receipt in outcome.receipts],
        applied=_applied(claimed),
        intents=intents,
        outgoing=outgoing,
        objects=list(stowed.values()),
        relay=relay,
        messages=_said(at, claimed.said, outcome.messages),
        iterations=outcome.iterations,
        calls=claimed.calls + len(outcome.calls),
        said=claimed.said + len(outcome.messages),
        wait_mode=outcome.wait.value,
    )


def finished(
    at: Place,
    outcome: Finished,
    *,
    claimed: Claimed,
    host: RunHost,
    checkpoint: NewCheckpoint,
    now: int,
) -> Advance:
    said = _said(at, claimed.said, [*outcome.messages, outcome.output])
    body = {"message_id": f"{claimed.turn}.m{claimed.said + len(said)}"}
    ended = NewEvent(type="turn.completed", thread=claimed.thread, turn=claimed.turn, body=body)
    return Advance(
        at=at,
        next=Next.FINISH,
        now=now,
        end=TurnPhase.COMPLETED,
        checkpoint=checkpoint,
        receipts=[host.sealed(receipt) for receipt in outcome.receipts],
        applied=_applied(claimed),
        messages=said,
        iterations=outcome.iterations,
        said=claimed.said + len(said),
        output=within_limit(orjson.dumps(outcome.output.to_json()), "output").decode(),
        public=[ended],
    )


def failed(
    at: Place,
    outcome: Failed,
    *,
    claimed: Claimed,
    host: RunHost,
    checkpoint: NewCheckpoint,
    now: int,
) -> Advance:
    """A failure for good. Where tools still run, the Turn settles first."""
    failure = failure_json(outcome.code, outcome.reason)
    settles = claimed.open_count > 0
    public = settling(at, Settle.FAILED) if settles else ended_badly(at, TurnPhase.FAILED, failure)
    return Advance(
        at=at,
        next=Next.SETTLE if settles else Next.FAIL,
        now=now,
        settle=Settle.FAILED if settles else None,
        end=TurnPhase.FAILED,
        checkpoint=checkpoint,
        receipts=[host.sealed(receipt) for receipt in outcome.receipts],
        applied=_applied(claimed),
        messages=_said(at, claimed.said, outcome.messages),
        iterations=outcome.iterations,
        calls=claimed.calls,
        said=claimed.said + len(outcome.messages),
        failure=failure,
        public=[public],
    )


def settling(at: Place, settle: Settle) -> NewEvent:
    return NewEvent(
        type="turn.settling", thread=at.thread, turn=at.turn, body={"outcome": settle.value}
    )


def ended_badly(at: Place, end: TurnPhase, failure: str | None) -> NewEvent:
    body: dict[str, Any] = {} if failure is None else {"failure": orjson.loads(failure)}
    return NewEvent(type=f"turn.{end.value.lower()}", thread=at.thread, turn=at.turn, body=body)


def failure_json(code: str, reason: str, next_step: str = "") -> str:
    body = {"code": code, "message": reason[:4000]}
    if next_step:
        body["next_step"] = next_step[:4000]
    return orjson.dumps(body).decode()


def turn_input(claimed: Claimed) -> Message:
    # What the ledger holds was checked when it was admitted.
    return Message.model_validate_json(claimed.input)


def _applied(claimed: Claimed) -> list[str]:
    return [intent.execution for intent in claimed.unapplied if intent.state == "RECEIVED"]


def _said(at: Place, before: int, messages: Sequence[Message]) -> list[NewEvent]:
    return [
        NewEvent(
            type="message.completed",
            thread=at.thread,
            turn=at.turn,
            run=at.run_id,
            said=(f"{at.turn}.m{number}", message),
        )
        for number, message in enumerate(messages, before + 1)
    ]


def _intents(
    at: Place,
    calls: Sequence[ToolCall],
    claimed: Claimed,
    agent: Harness,
    messages: Messages,
    first_inquiry_ms: int,
    now: int,
    stowed: Mapping[str, ObjectRef],
) -> tuple[list[NewIntent], list[OutboxRow]]:
    origin = Origin(run=at.run_id, step=at.step_id)
    thread = ThreadKey.parse(at.thread)
    intents: list[NewIntent] = []
    outgoing: list[OutboxRow] = []
    for number, call in enumerate(calls, claimed.calls + 1):
        binding = agent.bindings.get(call.tool)
        if binding is None:
            raise UnknownTool(
                f"the agent asked for the tool {call.tool!r}, which it does not have",
                where=agent.definition.agent,
                next_step="give the agent a catalog that holds it",
            )
        execution = execution_id(at.turn, number)
        row = messages.start(
            binding,
            thread=thread,
            turn=at.turn,
            execution=execution,
            call_id=call.call_id,
            arguments=call.arguments,
            origin=origin,
            now=now,
            arguments_ref=stowed.get(execution),
        )
        outgoing.append(row)
        intents.append(
            NewIntent(
                execution=execution,
                ordinal=number,
                call_id=call.call_id,
                kind="remote",
                tool=call.tool,
                route=binding.route,
                arguments=canonical_bytes(dict(call.arguments)),
                command=row.envelope,
                next_inquiry_at=now + first_inquiry_ms,
            )
        )
    return intents, outgoing
