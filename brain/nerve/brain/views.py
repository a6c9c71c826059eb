"""What a reader of the ledger gets to see: plain values without private state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import orjson

from nerve.brain.state.run import RunState, StepState
from nerve.brain.state.turn import TurnPhase
from nerve.common.sql import Row
from nerve.protocol.content import Message
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, told
from nerve.protocol.identity import run_id, step_id

LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryItem:
    """One public message; `sequence` orders it among all facts of its Session."""

    sequence: int
    turn: str
    message_id: str
    message: Message
    at: int

    @classmethod
    def of(cls, row: Row) -> Self:
        return cls(
            sequence=row["sequence"],
            turn=row["turn"],
            message_id=row["message"],
            message=Message.model_validate_json(row["body"]),
            at=row["created_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnItem:
    turn: str
    session: str
    thread: str
    ordinal: int
    request_id: str
    phase: TurnPhase
    created_at: int
    started_at: int | None
    ended_at: int | None

    @classmethod
    def of(cls, row: Row) -> Self:
        return cls(
            turn=row["id"],
            session=row["session"],
            thread=row["thread"],
            ordinal=row["ordinal"],
            request_id=row["request_id"],
            phase=TurnPhase(row["phase"]),
            created_at=row["created_at"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One invocation that ended. The one under way is in `status()`."""

    run: str
    number: int
    host: str
    state: RunState
    reason: str | None
    started_at: int
    ended_at: int

    @classmethod
    def of(cls, row: Row) -> Self:
        return cls(
            run=run_id(row["turn"], row["number"]),
            number=row["number"],
            host=row["host"],
            state=RunState(row["state"]),
            reason=row["reason"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    step: str
    run: str
    number: int
    phase: str
    state: StepState
    resumed_from_step_id: str | None
    started_at: int
    ended_at: int

    @classmethod
    def of(cls, row: Row) -> Self:
        run = run_id(row["turn"], row["run"])
        return cls(
            step=step_id(run, row["number"]),
            run=run,
            number=row["number"],
            phase=row["phase"],
            state=StepState(row["state"]),
            resumed_from_step_id=row["resumed_from"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolView:
    """One call: completed on Hands, received by Brain and applied by the agent are different times.

    `execution` is empty for a call that ran inside a Step of the Brain.
    """

    execution: str
    call_id: str
    tool: str
    route: str
    arguments: dict[str, Any]
    outcome: str
    effect: Effect
    attempt: int
    text: str | None
    reason: str | None
    origin_step: str
    applied_step: str | None
    requested_at: int
    admitted_at: int | None
    completed_at: int | None
    received_at: int | None
    applied_at: int | None
    cancel_requested_at: int | None

    @classmethod
    def of(cls, row: Row) -> Self:
        result = ExecutionResult.model_validate_json(row["result"]) if row["result"] else None
        effect = Effect(row["effect"])
        text = None
        if row["received_at"] is not None:
            text = told(ExecutionState(row["outcome"]), effect, result)
        return cls(
            execution=row["execution"],
            call_id=row["call_id"],
            tool=row["tool"],
            route=row["route"] or "",
            arguments=orjson.loads(row["arguments"]),
            outcome=row["outcome"],
            effect=effect,
            attempt=row["attempt"],
            text=text,
            reason=row["reason"],
            origin_step=row["origin_step"],
            applied_step=row["applied_step"],
            requested_at=row["requested_at"],
            admitted_at=row["admitted_at"],
            completed_at=row["completed_at"],
            received_at=row["received_at"],
            applied_at=row["applied_at"],
            cancel_requested_at=row["cancel_requested_at"],
        )


def local_views(receipts: Sequence[Row]) -> list[ToolView]:
    """Calls that ran inside Steps, by their receipts: one when each started, one when it ended."""
    calls: dict[str, dict[str, Row]] = {}
    for row in receipts:
        call, _, what = row["key"].removeprefix("tool:").rpartition(":")
        calls.setdefault(call, {})[what] = row
    return [_local(call, rows.get("started"), rows.get("ended")) for call, rows in calls.items()]


def _local(call: str, started: Row | None, ended: Row | None) -> ToolView:
    first, last = started or ended, ended
    assert first is not None
    kept = orjson.loads((last or first)["body"])
    return ToolView(
        execution="",
        call_id=call,
        tool=kept["tool"],
        route=LOCAL,
        arguments=kept["arguments"],
        outcome=kept.get("state", ExecutionState.STARTED.value),
        effect=Effect(kept.get("effect", Effect.UNCONFIRMED.value)),
        attempt=1,
        text=kept.get("text"),
        reason=None,
        origin_step=first["step"],
        applied_step=None if last is None else last["applied_step"],
        requested_at=first["created_at"],
        admitted_at=None if started is None else started["created_at"],
        completed_at=None if last is None else last["created_at"],
        received_at=None if last is None else last["created_at"],
        applied_at=None if last is None else last["applied_at"],
        cancel_requested_at=None,
    )
