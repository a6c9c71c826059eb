"""An agent whose tools run in the Brain: one that must not be repeated, and one that may."""

import asyncio
import os
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol.catalog import Catalog

PLACE = Path(os.environ["APART_PLACE"])
local = Catalog(route="local")


async def write(word: str) -> str:
    with (PLACE / "effects.txt").open("a") as file:
        file.write(word + "\n")
    while not (PLACE / "go").exists():
        await asyncio.sleep(0.02)
    return "noted"


@local.tool
async def note(word: str) -> str:
    """Writes a line, and waits for a gate."""
    return await write(word)


@local.tool(idempotent_start=True)
async def again(word: str) -> str:
    """The same; its start may be repeated."""
    return await write(word)


def answer(request: ModelRequest) -> ModelAnswer:
    last = cast("dict[str, Any]", request.messages[-1])
    if last["role"] == "tool":
        return ModelAnswer(text=str(last["text"]))
    return ModelAnswer(calls=(ModelCall(tool=str(last["text"]), arguments={"word": "w"}),))


agent = ReactAgent("alone", version="1", model=ScriptedModel(answer), local_tools=local)
