"""The agent of these tests; its catalog was exported from the tools, whose code is not here."""

from pathlib import Path

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog

HERE = Path(__file__).parent

agent = ReactAgent(
    "porter",
    version="1",
    model=ScriptedModel.from_file(HERE / "porter.yaml"),
    tools=Catalog.load((HERE / "catalog.json").read_bytes()),
)
