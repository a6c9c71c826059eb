"""An agent that calls the tool its input names, once, and tools that count their effects outside of every ledger."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol.catalog import Catalog
from nerve.protocol.signature import ToolContext

PLACE = Path(os.environ["APART_PLACE"])
tools = Catalog(route="hands")


def effect(context: ToolContext, what: str) -> None:
    line = f"{what} {context.execution} {context.attempt}\n"
    file = os.open(PLACE / "effects.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


async def gate() -> None:
    while not (PLACE / "go").exists():
        await asyncio.sleep(0.02)


@tools.tool
async def echo(word: str, context: ToolContext) -> dict[str, str]:
    """Says it again."""
    effect(context, "echo")
    return {"heard": word}


@tools.tool
async def hold(word: str, context: ToolContext) -> dict[str, str]:
    """The same, once a gate is open."""
    effect(context, "hold")
    await gate()
    return {"heard": word}


@tools.tool(idempotent_start=True)
async def again(word: str, context: ToolContext) -> dict[str, str]:
    """The same; its start may be repeated."""
    effect(context, "again")
    await gate()
    return {"heard": word}


def answer(request: ModelRequest) -> ModelAnswer:
    last = cast("dict[str, Any]", request.messages[-1])
    if last["role"] == "user":
        tool = str(last["text"])
        return ModelAnswer(calls=(ModelCall(tool=tool, arguments={"word": "é"}),))
    return ModelAnswer(text=str(last["text"]))


agent = ReactAgent("skewed", version="1", model=ScriptedModel(answer), tools=tools)
