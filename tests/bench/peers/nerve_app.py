"""The benchmark's agent: one scripted answer that calls the tool, one that ends the Turn."""

from pathlib import Path

from bench.peers import work
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.protocol.catalog import Catalog

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


script = Path(__file__).with_name("nerve_script.yaml")
agent = ReactAgent(
    "bench",
    version="1",
    model=ScriptedModel.from_file(script),
    tools=tools.merge(nowhere),
)
