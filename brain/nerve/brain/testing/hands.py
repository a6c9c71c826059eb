"""Stands for Hands where an agent is rehearsed: runs a catalog's functions, or stand-ins for them."""

import asyncio
from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import Any

from nerve.brain.harness import ToolCall, ToolOutcome
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import NotFound, ToolFailed
from nerve.protocol.execution import Effect, ExecutionState, told, value_result
from nerve.protocol.identity import Origin, run_id, step_id, turn_of
from nerve.protocol.signature import ToolContext

Stub = Callable[..., Any]  # Any: a function of any shape, like the tool it stands for


class RehearsalContext(ToolContext):
    """What a tool may know in a rehearsal; its output is kept in `written`."""

    def __init__(self, execution: str) -> None:
        run = run_id(turn_of(execution), 1)
        self.execution = execution
        self.attempt = 1
        self.origin = Origin(run=run, step=step_id(run, 1))
        self.written: list[bytes] = []

    async def write(self, data: bytes | str) -> None:
        self.written.append(data.encode() if isinstance(data, str) else data)

    @property
    def cancel_requested(self) -> bool:
        return False


class RehearsalHands:
    """Stubs come first, and need no schema; then the functions of the catalog."""

    def __init__(
        self, tools: Catalog | None = None, stubs: Mapping[str, Stub] | None = None
    ) -> None:
        self._tools = tools or Catalog()
        self._stubs = dict(stubs or {})

    async def run(self, call: ToolCall, execution: str) -> ToolOutcome:
        """What Hands would report of one execution."""
        state, effect = ExecutionState.SUCCEEDED, Effect.COMPLETED
        try:
            value = await self._value(call, execution)
        except NotFound:
            raise
        except Exception as error:
            state, value = ExecutionState.FAILED, str(error)
            effect = Effect.NONE if self._proves(call.tool, error) else Effect.UNCONFIRMED
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

    async def _value(self, call: ToolCall, execution: str) -> Any:
        stub = self._stubs.get(call.tool)
        if stub is not None:
            value = stub(**call.arguments)
            return await value if isawaitable(value) else value
        function = self._tools.tool_function(call.tool)
        typed = function.arguments(call.tool, call.arguments)
        context = RehearsalContext(execution)
        if function.is_async:
            return await function.invoke(typed, context)
        return await asyncio.to_thread(function.invoke, typed, context)

    def _proves(self, tool: str, error: Exception) -> bool:
        if isinstance(error, ToolFailed):
            return True
        known = tool not in self._stubs and self._tools.has_function(tool)
        return known and self._tools.tool_function(tool).proves(error)
