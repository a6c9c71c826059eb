"""A host for harnesses without a ledger: keeps only what is returned or handed over, as JSON.

`Conductor` drives one Thread as a Brain does. It throws the harness and every object away after each
`advance` and rebuilds them from JSON (replay always), and it checks the contract of the port.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from nerve.brain.harness import (
    Boundary,
    Checkpoint,
    Facts,
    Failed,
    Finished,
    Frame,
    Harness,
    Outcome,
    Parked,
    Paused,
    Receipt,
    ToolCall,
    ToolOutcome,
)
from nerve.protocol.canonical import JsonValue, canonical_bytes, read_strict
from nerve.protocol.content import Message, as_content
from nerve.protocol.errors import NerveError
from nerve.protocol.execution import Effect, ExecutionState, told, value_result
from nerve.protocol.identity import execution_id, new_turn_id

Tool = Callable[..., Any]
STEPS_MAX = 100


class Crash(BaseException):
    """The host process dies here: nothing that was not committed survives."""


@dataclass
class MemoryHost:
    """Implements `HarnessHost` over the committed receipts of one Turn.

    `boundaries` are the answers to come, then GO_ON; `crash_at` dies before the n-th operation.
    """

    receipts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    boundaries: list[Boundary] = field(default_factory=list[Boundary])
    crash_at: int | None = None
    refuse: Exception | None = None
    operations: int = 0
    crashed: bool = False
    previews: list[tuple[str, Mapping[str, JsonValue]]] = field(default_factory=list[Any])
    attempts: list[tuple[str, int, str | None]] = field(default_factory=list[Any])

    async def receipt(self, key: str) -> JsonValue | None:
        self._operation()
        raw = self.receipts.get(key)
        return None if raw is None else read_strict(raw)

    async def put_receipt(self, receipt: Receipt) -> None:
        self._operation()
        if self.refuse is not None:
            raise self.refuse
        self.keep(receipt)
        self._operation()

    async def boundary(self) -> Boundary:
        self._operation()
        return self.boundaries.pop(0) if self.boundaries else Boundary.GO_ON

    def observe_attempt(self, key: str, *, attempt: int, error: str | None) -> None:
        self.attempts.append((key, attempt, error))

    def emit(self, kind: str, body: Mapping[str, JsonValue]) -> None:
        canonical_bytes(body)
        self.previews.append((kind, dict(body)))

    def keep(self, receipt: Receipt) -> None:
        assert receipt.key not in self.receipts, f"the receipt {receipt.key} is written twice"
        self.receipts[receipt.key] = canonical_bytes(receipt.value)

    def _operation(self) -> None:
        self.operations += 1
        if self.operations == self.crash_at:
            self.crashed = True
            raise Crash


@dataclass
class Ended:
    """What became of a Turn, and what a watcher saw of it."""

    turn: str
    outcome: Finished | Failed
    messages: list[Message]
    calls: list[ToolCall]
    host: MemoryHost
    iterations: int

    @property
    def text(self) -> str:
        assert isinstance(self.outcome, Finished), self.outcome
        return self.outcome.output.text


class Conductor:
    """One Thread. `make` builds the harness as another process would; `tools` stand for Hands."""

    def __init__(
        self, make: Callable[[], Harness], tools: Mapping[str, Tool] | None = None
    ) -> None:
        self.make = make
        self._tools = dict(tools or {})
        self._now = 1_700_000_000_000
        self.position = 0
        self.entries: list[bytes] = []
        self.state: bytes = b"null"
        self.ran: list[str] = []
        self.runs = 0

    def frame(self) -> Frame:
        """As a cold host restores it."""
        return Frame(
            definition=self.make().definition,
            position=self.position,
            entries=[read_strict(raw) for raw in self.entries],
            state=read_strict(self.state),
        )

    async def turn(self, content: Any, *, host: MemoryHost | None = None) -> Ended:
        """From admission to the end, over as many Runs as it takes."""
        self._now += 1
        turn = RunningTurn(new_turn_id(self._now), as_content(content), host or MemoryHost())
        for _ in range(STEPS_MAX):
            outcome = await self.step(turn)
            if isinstance(outcome, (Finished, Failed)):
                return turn.ended(outcome)
        raise AssertionError(f"no end after {STEPS_MAX} steps")

    async def step(self, turn: "RunningTurn") -> Outcome | None:
        """One Run of a fresh harness; None where its host died."""
        self.runs += 1
        harness, frame = self.make(), self.frame()
        before = canonical_bytes(frame.entries)
        try:
            outcome = await harness.advance(frame, turn.facts(), turn.host)
        except Crash:
            return None
        assert canonical_bytes(frame.entries) == before, "a harness may not touch the frame"
        if isinstance(outcome, Paused):
            return outcome
        self.commit(turn, outcome)
        if isinstance(outcome, Parked):
            turn.results = [await self._run(turn, harness, call) for call in outcome.calls]
        return outcome

    def commit(self, turn: "RunningTurn", outcome: Parked | Finished | Failed) -> None:
        for receipt in outcome.receipts:
            turn.host.keep(receipt)
        self.append(outcome.checkpoint)
        turn.fresh = False
        turn.results = []
        turn.iterations += outcome.iterations
        turn.messages.extend(_public(message) for message in outcome.messages)
        if isinstance(outcome, Finished):
            turn.messages.append(_public(outcome.output))

    def append(self, checkpoint: Checkpoint) -> None:
        self.entries.extend(canonical_bytes(entry) for entry in checkpoint.entries)
        self.state = canonical_bytes(checkpoint.state)
        assert len(self.state) < 1024, "the state is small"
        self.position += 1

    async def _run(self, turn: "RunningTurn", harness: Harness, call: ToolCall) -> ToolOutcome:
        assert call.call_id not in [each.call_id for each in turn.calls], "call ids are unique"
        turn.calls.append(call)
        self.ran.append(call.tool)
        harness.bindings[call.tool].check_arguments(dict(call.arguments))
        execution = execution_id(turn.id, len(turn.calls))
        return await outcome_of(self._tools[call.tool], call, execution)


async def outcome_of(tool: Tool, call: ToolCall, execution: str) -> ToolOutcome:
    """As Hands report it: a value, an outcome that the tool made itself, or a failure."""
    state, effect = ExecutionState.SUCCEEDED, Effect.COMPLETED
    try:
        value: Any = tool(**call.arguments)
        value = await value if isawaitable(value) else value
    except NerveError as error:
        state, effect, value = ExecutionState.FAILED, Effect.NONE, str(error)
    except Exception as error:
        state, effect, value = ExecutionState.FAILED, Effect.UNCONFIRMED, str(error)
    result = value_result(value)
    return ToolOutcome(
        call_id=call.call_id,
        tool=call.tool,
        execution=execution,
        state=state,
        effect=effect,
        value=result.value,
        text=told(state, effect, result),
    )


@dataclass
class RunningTurn:
    """A Turn between two Runs: all that a ledger would hold of it."""

    id: str
    input: Message
    host: MemoryHost
    fresh: bool = True
    iterations: int = 0
    results: list[ToolOutcome] = field(default_factory=list[ToolOutcome])
    messages: list[Message] = field(default_factory=list[Message])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def facts(self) -> Facts:
        return Facts(
            turn=self.id,
            fresh=self.fresh,
            input=self.input,
            iterations=self.iterations,
            results=self.results,
        )

    def ended(self, outcome: Finished | Failed) -> Ended:
        return Ended(self.id, outcome, self.messages, self.calls, self.host, self.iterations)


def new_turn(content: Any, host: MemoryHost | None = None, *, now_ms: int = 1) -> RunningTurn:
    """A Turn for tests that step through it themselves."""
    return RunningTurn(new_turn_id(now_ms), as_content(content), host or MemoryHost())


def _public(message: Message) -> Message:
    return Message.model_validate_json(canonical_bytes(message.to_json()))
