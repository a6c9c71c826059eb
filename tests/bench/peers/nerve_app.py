"""The benchmark's agent: one scripted answer that calls the tool, one that ends the Turn."""

from typing import Any, cast

from bench.peers import work
from nerve.brain.agents.models import ModelAnswer, ModelCall, ModelRequest
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.protocol.catalog import Catalog

WAIT = "wait-"

tools = Catalog(route="hands")
nowhere = Catalog(route="nowhere")


@tools.tool
async def tool(turn: str) -> str:
    """Appends a line to the effect file."""
    return work.tool(turn)


@nowhere.tool
async def absent(turn: str) -> str:
    """Runs on a route that no process of the bench hosts."""
    raise NotImplementedError(turn)


def answer(request: ModelRequest) -> ModelAnswer:
    """The same two answers that every peer scripts; the turn's id stands in what the user said."""
    last = cast("dict[str, Any]", request.messages[-1])
    if last["role"] == "user":
        turn = last["text"].partition("-")[2]
        name = "absent" if last["text"].startswith(WAIT) else work.model_1(turn)["tool"]
        return ModelAnswer(calls=(ModelCall(tool=name, arguments={"turn": turn}),))
    asked = cast("dict[str, Any]", request.messages[-2])
    turn = asked["calls"][0]["arguments"]["turn"]
    return ModelAnswer(text=work.model_2(turn, last["text"]))


def agent_with(catalog: Catalog) -> ReactAgent:
    return ReactAgent("bench", version="1", model=ScriptedModel(answer), tools=catalog)


agent = agent_with(tools.merge(nowhere))
