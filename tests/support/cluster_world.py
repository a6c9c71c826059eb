"""The agents and tools of the chaos runs: one of each kind that dies differently.

The first word of a Turn's input says what its agent does; the model answers by the conversation alone.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.function import Context, FunctionAgent
from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.script import text_of
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.harness import Harness
from nerve.hands.authorize import AuthorizationRequest
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from nerve.protocol.signature import ToolContext
from support import effects

REPEATABLE = frozenset({"again", "again_slow"})
"""Tools whose start may be repeated: never UNKNOWN, and counted apart."""

MODEL_SECONDS = 0.15

CALLS: dict[str, list[str]] = {
    "plain": ["plain"],
    "many": ["plain", "threaded", "again", "plain"],
    "threaded": ["threaded"],
    "again": ["again"],
    "failing": ["failing"],
    "written": ["written"],
    "slow": ["slow"],
    "long": ["long"],
    "late": ["late"],
    "again_slow": ["again_slow"],
    "absent": ["absent"],
    "forbidden": ["forbidden"],
    "local": ["note", "plain"],
    "thinking": ["plain"],
    "suicidal": ["suicidal"],
    "stubborn": ["stubborn"],
    "blocking": ["blocking"],
    "talk": [],
}
MIX = ("plain", "many", "threaded", "again", "failing", "written", "slow", "local", "steps")


class World:
    """Everything a host needs, writing its marks below `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.effects = place / "effects.txt"
        self.asked = place / "asked.txt"
        self.tools = Catalog(route="hands")
        self.local = Catalog(route="local")
        self._add_tools()
        self._add_long_tools()
        self._add_awkward_tools()

    def agents(self) -> list[Harness]:
        model = ScriptedModel(self._answer)
        return [
            ReactAgent("chaos", version="1", model=model, tools=self.tools, local_tools=self.local),
            FunctionAgent(self._steps, "steps", version="1", tools=self.tools),
        ]

    def hands(self, *, with_absent: bool = False) -> Catalog:
        """What Hands offer: all of it but the tool that nobody has."""
        catalog = Catalog(route="hands")
        for binding in self.tools.bindings():
            if binding.name != "absent" or with_absent:
                catalog.add(binding, self.tools.tool_function(binding.name, binding.version))
        return catalog

    @staticmethod
    def authorize(request: AuthorizationRequest) -> bool:
        return request.tool != "forbidden"

    def entered(self, ctx: ToolContext, name: str) -> None:
        effects.write(self.effects, effects.ENTERED, ctx.execution, ctx.attempt, name)

    def effect(self, ctx: ToolContext, name: str) -> str:
        effects.write(self.effects, effects.EFFECT, ctx.execution, ctx.attempt, name)
        return "done"

    async def _answer(self, request: ModelRequest) -> ModelAnswer:
        effects.write(self.asked, effects.ASKED, request.key)
        messages = cast("list[dict[str, Any]]", list(request.messages))
        last = max(i for i, message in enumerate(messages) if message["role"] == "user")
        kind = text_of(messages[last]).split()[0]
        if kind == "thinking":
            await asyncio.sleep(MODEL_SECONDS)
        if len(messages) > last + 1 or not CALLS[kind]:
            return ModelAnswer(text=f"answer to {kind}")
        given = {"note": {"mark": request.key.replace("/", "~")}}
        return ModelAnswer(
            calls=tuple(ModelCall(tool=tool, arguments=given.get(tool, {})) for tool in CALLS[kind])
        )

    async def _steps(self, ctx: Context, input: Message) -> str:
        await ctx.step("load", lambda: "rows")
        both = await ctx.gather(ctx.call("plain").outcome(), ctx.call("again").outcome())
        await ctx.step("count", lambda: len(both))
        return f"answer to {input.text.split()[0]}"

    def _add_tools(self) -> None:
        tools = self.tools

        @tools.tool
        async def plain(ctx: ToolContext) -> str:
            """One effect that must not be repeated."""
            self.entered(ctx, "plain")
            await asyncio.sleep(0.005)
            return self.effect(ctx, "plain")

        @tools.tool
        def threaded(ctx: ToolContext) -> str:
            """The same in a thread."""
            self.entered(ctx, "threaded")
            time.sleep(0.005)
            return self.effect(ctx, "threaded")

        @tools.tool(idempotent_start=True)
        async def again(ctx: ToolContext) -> str:
            """Its start may be repeated."""
            self.entered(ctx, "again")
            await asyncio.sleep(0.005)
            return self.effect(ctx, "again")

        @tools.tool(idempotent_start=True)
        async def again_slow(ctx: ToolContext) -> str:
            """The same, for long enough to be killed inside."""
            self.entered(ctx, "again_slow")
            await asyncio.sleep(0.3)
            return self.effect(ctx, "again_slow")

        @tools.tool
        async def failing(ctx: ToolContext) -> str:
            """Takes effect and raises."""
            self.entered(ctx, "failing")
            self.effect(ctx, "failing")
            raise RuntimeError("this tool always fails")

    def _add_long_tools(self) -> None:
        tools = self.tools

        @tools.tool
        async def written(ctx: ToolContext) -> str:
            """Writes output for longer than one flush of it takes."""
            self.entered(ctx, "written")
            for number in range(4):
                await ctx.write(f"page {number}\n" * 20)
                await asyncio.sleep(0.1)
            return self.effect(ctx, "written")

        @tools.tool(cancellable=True)
        async def slow(ctx: ToolContext) -> str:
            """Long enough for a report of its progress, and for a cancel."""
            self.entered(ctx, "slow")
            await asyncio.sleep(0.4)
            return self.effect(ctx, "slow")

        @tools.tool(cancellable=True)
        async def long(ctx: ToolContext) -> str:
            """Outlives whatever a test does to it."""
            self.entered(ctx, "long")
            await asyncio.sleep(4)
            return self.effect(ctx, "long")

        @tools.tool(timeout_seconds=0.05)
        def late(ctx: ToolContext) -> str:
            """A thread that goes on after its time."""
            self.entered(ctx, "late")
            time.sleep(0.15)
            return self.effect(ctx, "late")

        @self.local.tool
        async def note(mark: str) -> str:
            """Runs in the Brain."""
            effects.write(self.effects, effects.ENTERED, mark, 1, "note")
            await asyncio.sleep(0.005)
            effects.write(self.effects, effects.EFFECT, mark, 1, "note")
            return "noted"

    def _add_awkward_tools(self) -> None:
        tools = self.tools

        @tools.tool
        async def absent(ctx: ToolContext) -> str:
            """No Hands have it."""
            return self.effect(ctx, "absent")

        @tools.tool
        async def forbidden(ctx: ToolContext) -> str:
            """The policy of every Hands host refuses it."""
            return self.effect(ctx, "forbidden")

        @tools.tool
        async def suicidal(ctx: ToolContext) -> str:
            """Kills its own process after its effect."""
            self.entered(ctx, "suicidal")
            self.effect(ctx, "suicidal")
            os.kill(os.getpid(), 9)
            await asyncio.sleep(60)
            return "never"

        @tools.tool(idempotent_start=True)
        async def stubborn(ctx: ToolContext) -> str:
            """May be repeated, and kills its process every time."""
            self.entered(ctx, "stubborn")
            os.kill(os.getpid(), 9)
            await asyncio.sleep(60)
            return "never"

        @tools.tool
        async def blocking(ctx: ToolContext) -> str:
            """Blocks the event loop of its host."""
            self.entered(ctx, "blocking")
            time.sleep(float(os.environ.get("CHAOS_BLOCK_SECONDS", "1")))
            return self.effect(ctx, "blocking")
