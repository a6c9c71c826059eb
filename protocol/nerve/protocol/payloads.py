"""What each reserved public event says beside its place; private state has no field here."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from nerve.protocol.content import Message
from nerve.protocol.execution import Effect, ExecutionState, Failure
from nerve.protocol.identity import (
    ExecutionField,
    IdField,
    NameField,
    Origin,
    RequestField,
    ToolField,
    TurnField,
)
from nerve.protocol.objects import ObjectRef
from nerve.protocol.wire import Code, Count, Millis, Ordinal, Reason, Wire


class InputKind(StrEnum):
    SUBMIT = "submit"
    STEER = "steer"
    INJECT = "inject"
    RESPOND = "respond"
    DELEGATE = "delegate"
    SCHEDULE = "schedule"


class Nothing(Wire):
    """The event's type and place say all."""


class SessionCreated(Wire):
    agent: NameField


class ThreadCreated(Wire):
    name: NameField
    agent: NameField | None = None
    version: NameField | None = None
    parent_turn: TurnField | None = None


class ThreadRestored(Wire):
    position: IdField
    source_thread: Annotated[str, Field(max_length=400)] | None = None


class TurnQueued(Wire):
    request_id: RequestField
    input_kind: InputKind = InputKind.SUBMIT


class Parent(Wire):
    """Who asked for a delegated Turn."""

    thread: Annotated[str, Field(max_length=400)]
    turn: TurnField
    execution: ExecutionField
    run: IdField
    step: IdField


class TurnStarted(Wire):
    parent: Parent | None = None


class TurnWaiting(Wire):
    """Why it cannot go on, and for which executions, interactions or time."""

    reason: Code
    executions: tuple[ExecutionField, ...] = ()
    interactions: tuple[IdField, ...] = ()
    until: Millis | None = None


class TurnControl(Wire):
    request_id: RequestField | None = None
    revision: Count | None = None
    reason: Reason | None = None


class TurnRecovery(Wire):
    """A Run was lost or failed, and another follows at `retry_at`."""

    reason: Reason
    step_id: IdField | None = None
    failures: Count | None = None
    limit: Count | None = None
    retry_at: Millis | None = None
    failure: Failure | None = None


class TurnSettling(Wire):
    outcome: Literal["failed", "cancelled", "limit"]


class TurnEnded(Wire):
    message_id: IdField | None = None
    failure: Failure | None = None
    reason: Reason | None = None


class Delegated(Wire):
    child_thread: Annotated[str, Field(max_length=400)]
    child_turn: TurnField
    call_id: IdField | None = None
    execution_id: ExecutionField | None = None


class MessageSaid(Wire):
    """A whole message; a new model request raises `attempt`, a replay of text `revision`."""

    message_id: IdField
    message: Message
    attempt: Ordinal = 1
    revision: Count = 0
    request_id: RequestField | None = None
    input_kind: InputKind | None = None
    interaction_id: IdField | None = None
    step_id: IdField | None = None


class Signal(Wire):
    signal_id: IdField
    kind: Code
    request_id: RequestField | None = None
    step_id: IdField | None = None


class Interaction(Wire):
    interaction_id: IdField
    kind: Literal["approval", "manual"]
    call_id: IdField | None = None
    tool: ToolField | None = None
    request_id: RequestField | None = None
    approved: bool | None = None


class RunStarted(Wire):
    number: Ordinal
    host: NameField | None = None
    resumed_from_step_id: IdField | None = None


class RunEnded(Wire):
    state: Code
    reason: Reason | None = None
    failure: Failure | None = None


class StepMoved(Wire):
    step_id: IdField
    phase: Code | None = None
    state: Code | None = None


class ModelCalled(Wire):
    """Observed counts only: what the provider did not say stays absent."""

    model_call_id: IdField
    step_id: IdField | None = None
    model: Annotated[str, Field(max_length=256)] | None = None
    attempt: Ordinal | None = None
    state: Code | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    elapsed_ms: Count | None = None
    usage_complete: bool | None = None


class ToolRequested(Wire):
    """Only a call that left the agent has an execution id."""

    call_id: IdField
    tool: ToolField
    kind: Code | None = None
    execution_id: ExecutionField | None = None
    step_id: IdField | None = None
    arguments: dict[str, JsonValue] | None = None


class ToolMoved(Wire):
    """What is known of a call; received and applied are different facts."""

    call_id: IdField | None = None
    tool: ToolField | None = None
    execution_id: ExecutionField | None = None
    step_id: IdField | None = None
    origin: Origin | None = None
    state: ExecutionState | None = None
    effect: Effect | None = None
    attempt: Count | None = None
    code: Code | None = None
    reason: Reason | None = None
    message: Message | None = None
    applied_at: Origin | None = None
    evidence: ObjectRef | Reason | None = None


class ArtifactPublished(Wire):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    media_type: Annotated[str, Field(max_length=128)]
    object: ObjectRef
    call_id: IdField | None = None


Custom = dict[str, Any]  # Any: JSON that an application chose
