"""An app whose tools leave lines in a file, in a folder whose hosts talk over RocketMQ."""

from pathlib import Path

from nerve.protocol import topics
from support.rocketmq import Space
from support.terminal import Terminal

APP = '''\
import time
from pathlib import Path

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.protocol import Catalog

tools = Catalog(route="hands")
HERE = Path(__file__).parent


@tools.tool
def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    with (HERE / "effects").open("a") as file:
        file.write(f"forecast {city}\\n")
    return f"sunny in {city}"


@tools.tool
def hold(name: str) -> str:
    """Wait until the test lets it go."""
    with (HERE / "effects").open("a") as file:
        file.write(f"entered {name}\\n")
    while not (HERE / f"go-{name}").exists():
        time.sleep(0.01)
    return f"held {name}"


agent = ReactAgent(
    "weather", version="1", model=ScriptedModel.from_file("weather.yaml"), tools=tools
)
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


def terminal_in(folder: Path, where: Space) -> Terminal:
    (folder / "app.py").write_text(APP)
    (folder / "weather.yaml").write_text(SCRIPT)
    address = f"rocketmq://{where.settings.endpoint}?prefix={where.settings.prefix}"
    return Terminal(folder, {"NERVE_BROKER": address})


def provision(terminal: Terminal, where: Space) -> None:
    """The topics of the route and of the Brain, whose ledger names the last one."""
    brain = terminal.host("brain", "app.py", NERVE_BROKER="")
    brain.stop()
    ledgers = terminal.here("doctor", "--json").value["ledgers"]
    cell = next(each["found"]["id"] for each in ledgers if each["name"] == "brain")
    for topic in (
        topics.commands("local", "hands"),
        topics.controls("local", "hands"),
        topics.updates("local", cell),
    ):
        where.make_now(topic)


def effects(terminal: Terminal) -> list[str]:
    path = terminal.folder / "effects"
    return path.read_text().splitlines() if path.exists() else []
