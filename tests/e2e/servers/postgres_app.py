"""An agent with one tool that leaves a mark outside."""

import os

from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.protocol.catalog import Catalog
from nerve.protocol.signature import ToolContext

tools = Catalog(route="hands")


@tools.tool
async def mark(context: ToolContext) -> str:
    """Appends its execution to a file."""
    line = os.open(os.environ["EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(line, f"{context.execution}\n".encode())
    os.close(line)
    return "marked"


def script(request: ModelRequest) -> ModelAnswer | str:
    last = request.messages[-1]
    if isinstance(last, dict) and last["role"] == "user":
        return ModelAnswer(calls=[ModelCall(tool="mark", arguments={})])
    return "final"


agent = ReactAgent("marker", version="1", model=ScriptedModel(script), tools=tools)
