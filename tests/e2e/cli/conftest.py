"""A folder with an app whose tools leave lines in a file that no ledger knows of."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.terminal import Terminal

APP = '''\
import asyncio
from pathlib import Path

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog

tools = Catalog(route="hands")
HERE = Path(__file__).parent


def wrote(line: str) -> None:
    with (HERE / "effects").open("a") as file:
        file.write(line + "\\n")


@tools.tool
async def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    wrote(f"forecast {city}")
    return f"sunny in {city}"


@tools.tool
async def hold(name: str) -> str:
    """Wait until the test lets it go."""
    wrote(f"entered {name}")
    while not (HERE / f"go-{name}").exists():
        await asyncio.sleep(0.01)
    wrote(f"held {name}")
    return f"held {name}"


model = ScriptedModel.from_file("weather.yaml", log=HERE / "model.log")
agent = ReactAgent("weather", version="1", model=model, tools=tools)
'''

SCRIPT = """\
- when: {user: "rain in (?P<city>\\\\w+)", round: 1}
  calls: [{tool: forecast, arguments: {city: $city}}]
- when: {user: "hold (?P<name>\\\\w+)", round: 1}
  calls: [{tool: hold, arguments: {name: $name}}]
- when: {tool: forecast}
  text: "The forecast: $last."
- when: {tool: hold}
  text: "Told: $last"
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "weather.yaml").write_text(SCRIPT)
    found = Terminal(tmp_path)
    yield found
    found.close()
