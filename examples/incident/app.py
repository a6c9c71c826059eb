"""An agent that reads logs and pages people: what may be repeated is said, and paging may not be."""

import json
from pathlib import Path

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog, ToolContext

HERE = Path(__file__).parent
tools = Catalog(route="hands")


@tools.tool(idempotent_start=True)
def count_errors(log: str) -> str:
    """How many lines of a log are errors. Reading leaves nothing behind, so it may start again."""
    lines = (HERE / Path(log).name).read_text(errors="replace").splitlines()
    errors = [line for line in lines if "ERROR" in line]
    return f"{log}: {len(errors)} of {len(lines)} lines, the last: {errors[-1]}"


@tools.tool
def page_on_call(context: ToolContext, team: str) -> str:
    """Wake up whoever is on call. Nothing says that it may start again, so it never does."""
    with (HERE / "pages.jsonl").open("a") as pages:
        pages.write(json.dumps({"team": team, "execution": context.execution}) + "\n")
    return f"{team} was paged"


agent = ReactAgent(
    "incident",
    version="1",
    model=ScriptedModel.from_file(HERE / "incident.yaml"),
    tools=tools,
    instructions="Find out what is broken, and page its owners once.",
)
