"""What the engine asks of tools and what they give back; how a tool runs is not its business."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from nerve.common.record import record
from nerve.hands.state.record import Move
from nerve.protocol.binding import ToolBinding
from nerve.protocol.commands import StartCommand
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState


@record
class Ended:
    """How a call ended, as far as whoever ran it can tell."""

    move: Move
    result: ExecutionResult


class Run(Protocol):
    """One attempt of one execution while it runs."""

    @property
    def command(self) -> StartCommand: ...

    @property
    def binding(self) -> ToolBinding: ...

    @property
    def attempt(self) -> int: ...

    @property
    def cancel_requested(self) -> bool: ...

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call it once when a cancel is requested; at once where that has happened."""
        ...

    def write(self, data: bytes) -> None:
        """Add output. From any thread; never blocks; what is too much becomes a gap."""
        ...

    def late(self, outcome: Ended) -> None:
        """What a call came to after its end was recorded: evidence for a person."""
        ...


current_run: ContextVar[Run | None] = ContextVar("nerve_current_run", default=None)
"""The run on whose behalf this task or thread executes; tasks and threads of a tool inherit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Something that only so many calls can use at once."""

    name: str
    size: int
    full: str = ""
    """Said of a call that waits because nothing of it is free."""


class Tools(Protocol):
    """The tools of one host."""

    def find(self, name: str, version: str) -> ToolBinding | None: ...

    def bindings(self) -> Sequence[ToolBinding]: ...

    def pools(self, binding: ToolBinding) -> Sequence[Pool]:
        """What a call needs room in, beside a slot of the host."""
        ...

    async def run(self, run: Run) -> Ended:
        """Call the tool once. Raises nothing of the tool's own making, and Unavailable once closed.

        Cancelled only where the whole process gives up; then nobody knows the outcome.
        """
        ...

    def close(self) -> None:
        """Take no more calls. Waits for nothing and stops nothing."""
        ...


def ended(
    state: ExecutionState,
    effect: Effect,
    result: ExecutionResult,
    *,
    code: str | None = None,
    reason: str | None = None,
) -> Ended:
    return Ended(move=Move(state=state, effect=effect, code=code, reason=reason), result=result)
