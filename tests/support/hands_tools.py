"""One function as a tool, run without an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nerve.common.clock import SystemClock
from nerve.hands.port import Ended
from nerve.hands.tools import FunctionTools
from nerve.protocol.binding import ToolBinding
from nerve.protocol.catalog import Catalog
from nerve.protocol.commands import StartCommand
from nerve.protocol.execution import Effect, ExecutionState
from support.hands_world import Asker
from support.waiting import soon


@dataclass(slots=True)
class FakeRun:
    """A `port.Run` that keeps what was written."""

    command: StartCommand
    binding: ToolBinding
    attempt: int = 1
    cancel_requested: bool = False
    written: list[bytes] = field(default_factory=list[bytes])
    lates: list[Ended] = field(default_factory=list[Ended])
    callback: Callable[[], object] | None = None

    def on_cancel(self, callback: Callable[[], object]) -> None:
        self.callback = callback

    def late(self, outcome: Ended) -> None:
        self.lates.append(outcome)

    def write(self, data: bytes) -> None:
        self.written.append(data)


def prepared(
    function: Callable[..., Any], arguments: dict[str, Any] | None = None, **options: Any
) -> tuple[FunctionTools, FakeRun]:
    catalog = Catalog()
    catalog.tool(name="t", **options)(function)
    tools = FunctionTools(catalog, route="hands", clock=SystemClock(), threads=4, result_bytes=1000)
    command = Asker(catalog).call("t", **(arguments or {}))
    return tools, FakeRun(command=command, binding=catalog.get("t"))


async def ended(
    function: Callable[..., Any], arguments: dict[str, Any] | None = None, **options: Any
) -> Ended:
    tools, run = prepared(function, arguments, **options)
    try:
        return await soon(tools.run(run))
    finally:
        tools.close()


def outcome(end: Ended) -> tuple[ExecutionState, Effect, str | None]:
    return end.move.state, end.move.effect, end.move.code
