"""Drives one Thread without a ledger, as a Brain does: only what was committed survives a step.

The harness and every object are thrown away after each `advance` and rebuilt from JSON (replay
always), and the contract of the port is checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nerve.brain.harness import (
    Checkpoint,
    Facts,
    Failed,
    Finished,
    Frame,
    Harness,
    Outcome,
    Parked,
    Paused,
    ToolCall,
    ToolOutcome,
)
from nerve.brain.testing.hands import RehearsalHands, Stub
from nerve.brain.testing.memory_host import ContractBroken, Crash, MemoryHost, require
from nerve.protocol.canonical import canonical_bytes, read_strict
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message, as_content
from nerve.protocol.identity import execution_id, new_turn_id

STEPS_MAX = 100
STATE_BYTES_MAX = 1024


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
        """The final answer; an AssertionError where there is none."""
        if isinstance(self.outcome, Failed):
            raise AssertionError(f"the Turn failed: {self.outcome.code}: {self.outcome.reason}")
        return self.outcome.output.text


class Conductor:
    """One Thread. `make` builds the harness as another process would; `tools` and `stubs` are run
    in the place of Hands."""

    def __init__(
        self,
        make: Callable[[], Harness],
        stubs: Mapping[str, Stub] | None = None,
        *,
        tools: Catalog | None = None,
    ) -> None:
        self.make = make
        self._hands = RehearsalHands(tools, stubs)
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
        raise ContractBroken(f"no end after {STEPS_MAX} steps")

    async def step(self, turn: "RunningTurn") -> Outcome | None:
        """One Run of a fresh harness; None where its host died."""
        self.runs += 1
        harness, frame = self.make(), self.frame()
        before = canonical_bytes(frame.entries)
        try:
            outcome = await harness.advance(frame, turn.facts(), turn.host)
        except Crash:
            return None
        require(canonical_bytes(frame.entries) == before, "a harness may not touch the frame")
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
        require(len(self.state) <= STATE_BYTES_MAX, "the state is small")
        self.position += 1

    async def _run(self, turn: "RunningTurn", harness: Harness, call: ToolCall) -> ToolOutcome:
        unique = call.call_id not in [each.call_id for each in turn.calls]
        require(unique, f"the call id {call.call_id} is used twice in a Turn")
        turn.calls.append(call)
        self.ran.append(call.tool)
        harness.bindings[call.tool].check_arguments(dict(call.arguments))
        execution = execution_id(turn.id, len(turn.calls))
        return await self._hands.run(call, execution)


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
