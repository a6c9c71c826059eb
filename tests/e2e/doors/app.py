"""An agent that calls the tool its input names, and tools that do everything a tool should not."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import ToolFailed
from nerve.protocol.signature import ToolContext
from support import hostile

PLACE = Path(os.environ["APART_PLACE"])
tools = Catalog(route="hands")


def effect(context: ToolContext, what: str) -> None:
    file = os.open(PLACE / "effects.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{what} {context.execution} {context.attempt}\n".encode())
    os.close(file)


@tools.tool
async def echo(word: str, context: ToolContext) -> str:
    """Says it again."""
    effect(context, "echo")
    return f"echo {word}"


@tools.tool
async def give(what: str, context: ToolContext) -> Any:
    """Returns something that is no JSON, after its effect."""
    effect(context, "give")
    return hostile.values()[what][0]


@tools.tool
async def large(size: int, context: ToolContext) -> str:
    """Returns so many bytes."""
    effect(context, "large")
    return "x" * size


@tools.tool
async def throw(text: str, context: ToolContext) -> str:
    """Raises, and says something hostile."""
    effect(context, "throw")
    raise RuntimeError(hostile.values()[text][0] if text in hostile.values() else text)


@tools.tool
async def prove(context: ToolContext) -> str:
    """Proves that it changed nothing."""
    raise ToolFailed("there is no such file", {"file": "a.txt"})


@tools.tool
async def leave(context: ToolContext) -> str:
    """Tries to end the process in the polite way."""
    effect(context, "leave")
    sys.exit(3)


@tools.tool
async def chatter(mebibytes: int, context: ToolContext) -> str:
    """Prints very much."""
    effect(context, "chatter")
    for _ in range(mebibytes * 16):
        print("y" * 65535)
    return "said"


@tools.tool
async def binary(context: ToolContext) -> str:
    """Writes bytes in odd pieces."""
    effect(context, "binary")
    data = bytes(range(256)) * 300
    cuts = [1, 7, 255, 4096, 65537]
    for number, start in enumerate(range(0, len(data), 977)):
        await context.write(data[start : start + 977][: cuts[number % 5]])
        await context.write(data[start : start + 977][cuts[number % 5] :])
    return "written"


@tools.tool
async def block(seconds: float, context: ToolContext) -> str:
    """Blocks the event loop."""
    effect(context, "block")
    time.sleep(seconds)
    return "unblocked"


@tools.tool
async def die(context: ToolContext) -> str:
    """Kills its own process after its effect."""
    effect(context, "die")
    os.kill(os.getpid(), 9)
    await asyncio.sleep(60)
    return "never"


def answer(request: ModelRequest) -> ModelAnswer:
    """`tool {json}`: calls it with the text as arguments, as a model writes them; then repeats it."""
    messages = cast("list[dict[str, Any]]", list(request.messages))
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    if messages[-1]["role"] == "tool":
        return ModelAnswer(text=str(messages[-1]["text"]))
    tool, _, arguments = str(messages[last]["text"]).partition(" ")
    if tool == "echo" and not arguments:
        arguments = '{"word":"echo"}'
    return ModelAnswer(calls=(ModelCall(tool=tool, arguments=arguments or "{}"),))


agent = ReactAgent("hostile", version="1", model=ScriptedModel(answer), tools=tools)
