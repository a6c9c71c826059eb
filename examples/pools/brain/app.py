"""The agent of two pools of Hands. It knows their tools by an exported catalog and has none of their code.

`nerve catalog ../hands/app.py > catalog.json` writes the catalog anew.
"""

from pathlib import Path

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog

HERE = Path(__file__).parent

agent = ReactAgent(
    "helper",
    version="1",
    model=ScriptedModel.from_file(HERE / "helper.yaml"),
    tools=Catalog.load((HERE / "catalog.json").read_bytes()),
)
