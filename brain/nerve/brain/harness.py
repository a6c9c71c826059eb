"""The port an agent kernel fulfils, neutral between frameworks.

A harness never touches a ledger, a broker or a clock. It is given what is durable (`Frame`), what
has become known since (`Facts`) and a host to ask, and runs until the Turn must wait, is over, or
was asked to stop. Everything it wants kept is in what it returns or in what it hands to the host;
a host may be killed at any instant, and then another calls `advance` again with what was committed.

- A model answer is kept by a receipt under a key that only depends on the Turn and a counter, so
  that a repeated `advance` finds it (`HarnessHost.receipt`) and does not ask the model again.
  Where nothing else lies between the answer and the end of this `advance`, the receipt rides in the
  outcome; otherwise `put_receipt` commits it at once.
- Tools are not run here. A harness parks with calls; the host commits checkpoint, intents and
  outgoing commands in one transaction, and calls `advance` again when the awaited results are there.
- Nothing private (reasoning, native messages) may stand in `messages` or previews.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import JsonValue
from nerve.protocol.content import Message
from nerve.protocol.execution import Effect, ExecutionState


class WaitMode(StrEnum):
    """How many of the parked calls must have results before the Turn goes on."""

    ALL = "ALL"
    ANY = "ANY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a Thread pins: `harness` and `state_version` say who can read its checkpoints."""

    agent: str
    version: str
    harness: str
    state_version: str


@dataclass(slots=True, kw_only=True)
class Frame:
    """The durable position of a Thread. `entries` may be kept by a warm host and only ever grows."""

    definition: Definition
    position: int
    entries: list[JsonValue]
    state: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What an agent asks to be run. `call_id` is unique in the Turn; arguments are a JSON object."""

    call_id: str
    tool: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """A result that was received and that the checkpoint of the next outcome must contain.

    `text` is what a model may be told: it already names the effect where that is not plain.
    """

    call_id: str
    tool: str
    execution: str
    state: ExecutionState
    effect: Effect
    value: JsonValue
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the ledger knows when a Run begins or goes on.

    `fresh` is True for the first `advance` of the Turn (its input is not in `entries` yet).
    `iterations` counts the model rounds of this Turn that are committed, over all restarts.
    `waiting` names calls without a result (only under `WaitMode.ANY`).
    """

    turn: str
    fresh: bool
    input: Message
    iterations: int
    results: Sequence[ToolOutcome]
    waiting: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call; None where the provider did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A finished model answer (or any other paid-for value) under its key."""

    key: str
    value: JsonValue
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What to append to the Thread: new journal entries, and the small state that replaces the old."""

    entries: Sequence[JsonValue]
    state: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """The Turn goes on when results of `calls` are there. `messages` become public."""

    checkpoint: Checkpoint
    calls: Sequence[ToolCall]
    wait: WaitMode = WaitMode.ALL
    receipts: Sequence[Receipt] = ()
    messages: Sequence[Message] = ()
    iterations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The Turn is over with `output`."""

    checkpoint: Checkpoint
    output: Message
    receipts: Sequence[Receipt] = ()
    messages: Sequence[Message] = ()
    iterations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The Turn cannot succeed (a limit was reached, the model refused): no retry.

    `code` is stable, `reason` is for people, `checkpoint` leaves a history that is valid input for
    the next Turn.
    """

    checkpoint: Checkpoint
    code: str
    reason: str
    receipts: Sequence[Receipt] = ()
    messages: Sequence[Message] = ()
    iterations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The harness stopped at a boundary because the host asked it to; nothing is appended."""


Outcome = Parked | Finished | Failed | Paused


class Boundary(StrEnum):
    """What a harness does at a safe boundary. STOP: return `Paused` (pause, cancel, drain, lost lease)."""

    GO_ON = "GO_ON"
    STOP = "STOP"


class HarnessHost(Protocol):
    """What a running harness may ask of its host."""

    async def receipt(self, key: str) -> JsonValue | None:
        """The committed value under `key` in this Turn, or None."""
        ...

    async def put_receipt(self, receipt: Receipt) -> None:
        """Commit one receipt now (fenced). Raises `Fenced` where another host owns the Thread."""
        ...

    async def boundary(self) -> Boundary: ...

    def observe_attempt(self, key: str, *, attempt: int, error: str | None) -> None:
        """A request to a model was sent (error None: it answered)."""
        ...

    def emit(self, kind: str, body: Mapping[str, JsonValue]) -> None:
        """A best-effort preview (`message.delta`, `tool.arguments.delta`): never stored."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessFlags:
    """What a harness declares about its recovery.

    `replays`: every `advance` reads the receipts of earlier ones; otherwise only one that follows
    an interrupted Run does.
    """

    recovery: str = "TOOL_BOUNDARY"
    streams: bool = False
    replays: bool = True
    local_tools: str = "a local tool that was running when its host died is reported as unconfirmed"


class Harness(Protocol):
    """An agent kernel bound to one definition."""

    @property
    def definition(self) -> Definition: ...

    @property
    def flags(self) -> HarnessFlags: ...

    @property
    def bindings(self) -> Mapping[str, ToolBinding]:
        """Every tool the agent may call, by name. A binding without a Hands route runs locally."""
        ...

    @property
    def nature(self) -> Mapping[str, JsonValue]:
        """What else makes the agent what it is (instructions, model, limits), without a secret: where
        it changes under an unchanged version, unfinished Turns would silently go on with another."""
        ...

    async def advance(self, frame: Frame, facts: Facts, host: HarnessHost) -> Outcome:
        """Run from `frame` with `facts` until an outcome.

        Raises anything: the host classifies it (I/O, timeouts, 429 and 5xx are tried again with a
        stored budget; programming errors end the Turn).
        """
        ...

    def settle(self, frame: Frame, results: Sequence[ToolOutcome]) -> Checkpoint:
        """Close open calls of a Turn that was failed or cancelled, without a model, so that the
        stored history is valid input for the next Turn."""
        ...
