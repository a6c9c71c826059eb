"""An agent that is a plain coroutine: its steps and tool calls are durable, its body is repeated.

    @function_agent("report", version="1", tools=catalog)
    async def report(ctx: Context, input: Message) -> str:
        rows = await ctx.step("rows", load_rows, input.text)      # done once its result is committed
        left, right = await ctx.gather(ctx.call("sum", rows=rows), ctx.call("plot", rows=rows))
        return f"{left} {right}"

After each wait the body runs again from its top with what is known, so it must ask for the same
things in the same order: time and chance come from `ctx.now()` and `ctx.random()`, all I/O stands
in steps, and calls that belong together go through `ctx.gather`. Asking for something else is found
and named. A step that was running when its host died runs again; what must not be repeated is a
tool. A body cannot catch the wait by `except Exception`.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel

from nerve.brain.agents.chat import Entry, assistant_entry, user_entry
from nerve.brain.agents.context import CallFailed, Context, Interrupted
from nerve.brain.agents.local import LocalTools, together
from nerve.brain.agents.replay import Record, call_entry, result_entry, unanswered_entry
from nerve.brain.harness import (
    Checkpoint,
    Definition,
    Facts,
    Failed,
    Finished,
    Frame,
    HarnessFlags,
    HarnessHost,
    Outcome,
    Parked,
    Paused,
    ToolOutcome,
)
from nerve.common.clock import Clock, SystemClock
from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import JsonValue, check_value
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message, Role, StructuredPart
from nerve.protocol.errors import BadInput
from nerve.protocol.identity import check_name

__all__ = ["CallFailed", "Context", "FunctionAgent", "function_agent"]

STATE_VERSION: Final = "1"
_NO_ANSWER = "(This Turn ended without an answer.)"
Body = Callable[[Context, Message], Awaitable[Any]]  # Any: text, Message, model or JSON


class FunctionAgent:
    """A coroutine as a Harness."""

    def __init__(
        self,
        body: Body,
        name: str,
        *,
        version: str = "1",
        tools: Catalog | None = None,
        local_tools: Catalog | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.definition = Definition(
            agent=check_name(name, "agent"),
            version=check_name(version, "version"),
            harness="function",
            state_version=STATE_VERSION,
        )
        self.flags = HarnessFlags()
        self.nature: Mapping[str, JsonValue] = {}
        self.body = body
        self.local = LocalTools(local_tools)
        self.bindings: Mapping[str, ToolBinding] = together(tools, self.local)
        self.clock = SystemClock() if clock is None else clock
        self.chance = chance

    async def __call__(self, ctx: Context, input: Message) -> Any:
        """The body itself, for a test of its own."""
        return await self.body(ctx, input)

    async def advance(self, frame: Frame, facts: Facts, host: HarnessHost) -> Outcome:
        ctx = Context(self, frame, facts, host)
        taken = _taken_in(facts)
        try:
            returned = await self.body(ctx, facts.input)
        except Interrupted:
            return _interrupted(ctx, taken)
        except CallFailed as error:
            ctx.check_replay()
            return _failed(ctx, taken, error)
        except BaseException:
            ctx.check_replay()
            if ctx.interrupted is None:
                raise
            # A task group of the body wraps the wait into an error of its own.
            return _interrupted(ctx, taken)
        if ctx.interrupted is not None:
            return _interrupted(ctx, taken)
        ctx.check_end()
        return _finished(ctx, taken, returned)

    def settle(self, frame: Frame, results: Sequence[ToolOutcome]) -> Checkpoint:
        known = {result.call_id: result for result in results}
        entries: list[JsonValue] = [
            result_entry(known[call]) if call in known else unanswered_entry(call)
            for call in Record.read(frame.entries).open()
        ]
        tail = entries or frame.entries[-1:]
        if tail and cast("Entry", tail[-1])["role"] != "assistant":
            entries.append(assistant_entry(_NO_ANSWER))
        return Checkpoint(entries=entries, state={})


def function_agent(
    name: str,
    *,
    version: str = "1",
    tools: Catalog | None = None,
    local_tools: Catalog | None = None,
    clock: Clock | None = None,
) -> Callable[[Body], FunctionAgent]:
    """Make an agent of a coroutine function."""
    return lambda body: FunctionAgent(
        body, name, version=version, tools=tools, local_tools=local_tools, clock=clock
    )


def _taken_in(facts: Facts) -> list[JsonValue]:
    """The input or the results that this Run received, as entries."""
    if facts.fresh:
        return [user_entry(facts.input, facts.turn)]
    return [result_entry(result) for result in facts.results]


def _interrupted(ctx: Context, taken: Sequence[JsonValue]) -> Outcome:
    ctx.check_replay()
    interrupted = cast("Interrupted", ctx.interrupted)
    if interrupted.error is not None:
        raise interrupted.error
    if interrupted.stopped:
        return Paused()
    asked = [call_entry(call) for call in ctx.asked]
    return Parked(
        checkpoint=Checkpoint(entries=[*taken, *asked], state={}),
        calls=ctx.asked,
        receipts=ctx.receipts,
    )


def _finished(ctx: Context, taken: Sequence[JsonValue], returned: Any) -> Finished:
    output = _message(returned)
    return Finished(
        checkpoint=Checkpoint(entries=[*taken, assistant_entry(output.text)], state={}),
        output=output,
        receipts=ctx.receipts,
    )


def _failed(ctx: Context, taken: Sequence[JsonValue], error: CallFailed) -> Failed:
    entry = assistant_entry(f"(This Turn failed: {error})")
    return Failed(
        checkpoint=Checkpoint(entries=[*taken, entry], state={}),
        code=error.code,
        reason=str(error),
        receipts=ctx.receipts,
    )


def _message(returned: Any) -> Message:
    """The output of a body: text, a Message, or a value as structured data."""
    if isinstance(returned, str):
        return Message.assistant(returned)
    if isinstance(returned, Message):
        return returned
    if returned is None:
        raise BadInput(
            "the agent returned nothing", where="return", next_step="Return text or a value"
        )
    value = check_value(returned, "return")
    name = type(returned).__name__ if isinstance(returned, BaseModel) else None
    return Message(role=Role.ASSISTANT, parts=(StructuredPart(value=value, name=name),))
