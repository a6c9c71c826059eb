"""An agent whose model and tools write down who they are, and can be held by a file that is not there yet."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.script import text_of
from nerve.brain.agents.scripted import ScriptedModel
from nerve.protocol.catalog import Catalog
from nerve.protocol.signature import ToolContext
from support import effects

MARKS = Path(os.environ["EFFECTS"])
GATE = Path(os.environ["GATE"])
tools = Catalog(route="hands")


async def opened() -> None:
    while not GATE.exists():
        await asyncio.sleep(0.01)


def note(kind: str, context: ToolContext, name: str) -> None:
    effects.write(MARKS, kind, context.execution, context.attempt, name)


@tools.tool
async def quick(context: ToolContext) -> str:
    """Takes effect at once."""
    note(effects.ENTERED, context, "quick")
    note(effects.EFFECT, context, "quick")
    return "done"


@tools.tool
async def once(context: ToolContext) -> str:
    """Is held before its effect, which must not be repeated."""
    note(effects.ENTERED, context, "once")
    await opened()
    note(effects.EFFECT, context, "once")
    return "done"


@tools.tool(idempotent_start=True)
async def again(context: ToolContext) -> str:
    """The same, and may be started again."""
    note(effects.ENTERED, context, "again")
    await opened()
    note(effects.EFFECT, context, "again")
    return "done"


async def script(request: ModelRequest) -> ModelAnswer | str:
    effects.write(MARKS, effects.ASKED, request.key)
    messages = cast("list[dict[str, Any]]", list(request.messages))
    if messages[-1]["role"] != "user":
        return "final"
    wanted = text_of(messages[-1]).split()[0]
    if wanted != "think":
        return ModelAnswer(calls=[ModelCall(tool=wanted, arguments={})])
    await opened()
    return "final"


agent = ReactAgent("marker", version="1", model=ScriptedModel(script), tools=tools)
