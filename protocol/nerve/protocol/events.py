"""Public facts of a Session: their types, payloads and cursor; previews, which are no facts.

Types without the prefix `x.` are reserved and have checked payloads; an application's own are
named `x.<namespace>.<name>` and carry any JSON object.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from nerve.protocol import payloads as said
from nerve.protocol.canonical import canonical_bytes, check_value
from nerve.protocol.errors import BadInput, InvalidName, TooLarge
from nerve.protocol.identity import IdField, NameField
from nerve.protocol.wire import Millis, Ordinal, Wire, parse_wire

PAYLOAD_BYTES_MAX: Final = 1024 * 1024
_CUSTOM = re.compile(r"x\.[a-z0-9][a-z0-9_-]{0,63}\.[a-z0-9][a-z0-9_.-]{0,127}\Z")
_CURSOR = re.compile(r"e(0|[1-9][0-9]{0,15})\Z")


class EventType(StrEnum):
    SESSION_CREATED = "session.created"
    SESSION_CLOSED = "session.closed"
    THREAD_CREATED = "thread.created"
    THREAD_CLOSED = "thread.closed"
    THREAD_RESTORED = "thread.restored"
    THREAD_FORKED = "thread.forked"
    TURN_QUEUED = "turn.queued"
    TURN_STARTED = "turn.started"
    TURN_WAITING = "turn.waiting"
    TURN_PAUSING = "turn.pausing"
    TURN_PAUSED = "turn.paused"
    TURN_RESUMED = "turn.resumed"
    TURN_CANCEL_REQUESTED = "turn.cancel_requested"
    TURN_SETTLING = "turn.settling"
    TURN_RECOVERY = "turn.recovery"
    TURN_DELEGATED = "turn.delegated"
    TURN_COMPLETED = "turn.completed"
    TURN_FAILED = "turn.failed"
    TURN_CANCELLED = "turn.cancelled"
    MESSAGE_USER = "message.user"
    MESSAGE_COMPLETED = "message.completed"
    SIGNAL_ADMITTED = "signal.admitted"
    SIGNAL_APPLIED = "signal.applied"
    SIGNAL_WITHDRAWN = "signal.withdrawn"
    INTERACTION_OPENED = "interaction.opened"
    INTERACTION_RESOLVED = "interaction.resolved"
    RUN_STARTED = "run.started"
    RUN_ENDED = "run.ended"
    STEP_STARTED = "step.started"
    STEP_ENDED = "step.ended"
    MODEL_STARTED = "model.started"
    MODEL_ENDED = "model.ended"
    TOOL_REQUESTED = "tool.requested"
    TOOL_ADMITTED = "tool.admitted"
    TOOL_STARTED = "tool.started"
    TOOL_PROGRESS = "tool.progress"
    TOOL_CANCEL_REQUESTED = "tool.cancel_requested"
    TOOL_COMPLETED = "tool.completed"
    TOOL_RECEIVED = "tool.received"
    TOOL_UNKNOWN = "tool.unknown"
    TOOL_RECONCILED = "tool.reconciled"
    TOOL_APPLIED = "tool.applied"
    TOOL_DELEGATED = "tool.delegated"
    TOOL_DELEGATION_CANCEL_REQUESTED = "tool.delegation.cancel_requested"
    ARTIFACT_PUBLISHED = "artifact.published"


class PreviewType(StrEnum):
    """Best effort, never stored, without a cursor."""

    MESSAGE_DELTA = "message.delta"
    TOOL_ARGUMENTS_DELTA = "tool.arguments.delta"


_T = EventType
PAYLOADS: Final[Mapping[EventType, type[Wire]]] = MappingProxyType(
    {
        _T.SESSION_CREATED: said.SessionCreated,
        _T.SESSION_CLOSED: said.Nothing,
        _T.THREAD_CREATED: said.ThreadCreated,
        _T.THREAD_CLOSED: said.Nothing,
        _T.THREAD_RESTORED: said.ThreadRestored,
        _T.THREAD_FORKED: said.ThreadRestored,
        _T.TURN_QUEUED: said.TurnQueued,
        _T.TURN_STARTED: said.TurnStarted,
        _T.TURN_WAITING: said.TurnWaiting,
        _T.TURN_PAUSING: said.TurnControl,
        _T.TURN_PAUSED: said.TurnControl,
        _T.TURN_RESUMED: said.TurnControl,
        _T.TURN_CANCEL_REQUESTED: said.TurnControl,
        _T.TURN_SETTLING: said.TurnSettling,
        _T.TURN_RECOVERY: said.TurnRecovery,
        _T.TURN_DELEGATED: said.Delegated,
        _T.TURN_COMPLETED: said.TurnEnded,
        _T.TURN_FAILED: said.TurnEnded,
        _T.TURN_CANCELLED: said.TurnEnded,
        _T.MESSAGE_USER: said.MessageSaid,
        _T.MESSAGE_COMPLETED: said.MessageSaid,
        _T.SIGNAL_ADMITTED: said.Signal,
        _T.SIGNAL_APPLIED: said.Signal,
        _T.SIGNAL_WITHDRAWN: said.Signal,
        _T.INTERACTION_OPENED: said.Interaction,
        _T.INTERACTION_RESOLVED: said.Interaction,
        _T.RUN_STARTED: said.RunStarted,
        _T.RUN_ENDED: said.RunEnded,
        _T.STEP_STARTED: said.StepMoved,
        _T.STEP_ENDED: said.StepMoved,
        _T.MODEL_STARTED: said.ModelCalled,
        _T.MODEL_ENDED: said.ModelCalled,
        _T.TOOL_REQUESTED: said.ToolRequested,
        _T.TOOL_ADMITTED: said.ToolMoved,
        _T.TOOL_STARTED: said.ToolMoved,
        _T.TOOL_PROGRESS: said.ToolMoved,
        _T.TOOL_CANCEL_REQUESTED: said.ToolMoved,
        _T.TOOL_COMPLETED: said.ToolMoved,
        _T.TOOL_RECEIVED: said.ToolMoved,
        _T.TOOL_UNKNOWN: said.ToolMoved,
        _T.TOOL_RECONCILED: said.ToolMoved,
        _T.TOOL_APPLIED: said.ToolMoved,
        _T.TOOL_DELEGATED: said.Delegated,
        _T.TOOL_DELEGATION_CANCEL_REQUESTED: said.Delegated,
        _T.ARTIFACT_PUBLISHED: said.ArtifactPublished,
    }
)


class PublicEvent(Wire):
    """One committed fact at its place in the Session's gapless sequence."""

    sequence: Ordinal
    type: Annotated[str, Field(max_length=200)]
    namespace: NameField
    session: NameField
    thread: NameField | None = None
    turn: IdField | None = None
    run: IdField | None = None
    at: Millis
    payload: dict[str, JsonValue] = {}

    @property
    def cursor(self) -> str:
        return cursor_of(self.sequence)


def is_custom(type: str) -> bool:
    return type.startswith("x.")


def check_type(type: str) -> str:
    """A reserved type or a well-formed custom one."""
    if is_custom(type):
        if _CUSTOM.match(type):
            return type
        raise InvalidName(
            f"{ascii(type)[:100]} is not a custom event", where="type", next_step="Use x.team.name"
        )
    try:
        return EventType(type)
    except ValueError:
        raise InvalidName(
            f"{ascii(type)[:100]} is not a public event",
            where="type",
            next_step="Custom events are named x.<namespace>.<name>",
        ) from None


def check_event(type: str, payload: Mapping[str, Any]) -> dict[str, JsonValue]:
    """The payload as it may be stored; raises where a reserved type says something else."""
    known = check_type(type)
    checked = check_value(dict(payload), "payload")
    assert isinstance(checked, dict)
    written = canonical_bytes(checked)
    if len(written) > PAYLOAD_BYTES_MAX:
        raise TooLarge(
            f"a {known} event of {len(written)} bytes; the limit is {PAYLOAD_BYTES_MAX}",
            where="payload",
            next_step="Publish an artifact and send its reference",
        )
    if isinstance(known, EventType):
        parse_wire(PAYLOADS[known], written, f"payload of {known}")
    return checked


def cursor_of(sequence: int) -> str:
    """After the event with this sequence; 0 is the beginning."""
    return f"e{sequence}"


def sequence_of(cursor: str | None) -> int:
    """The sequence that a cursor stands behind."""
    if cursor is None:
        return 0
    match = _CURSOR.match(cursor)
    if match is None:
        raise BadInput(
            f"{ascii(cursor)[:80]} is not a cursor",
            where="cursor",
            next_step="Use the cursor that an earlier event or page gave",
        )
    return int(match[1])
