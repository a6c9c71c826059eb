"""A Brain and its Hands with RocketMQ between them: real processes, started by one address."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nerve.protocol import topics
from support.rocketmq import Space, a_space, started
from support.servers.native import NativeServer
from support.terminal import Terminal, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]

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


@pytest.fixture
def where() -> Space:
    return a_space()


@pytest.fixture
def terminal(tmp_path: Path, where: Space) -> Iterator[Terminal]:
    found = terminal_in(tmp_path, where)
    yield found
    found.close()


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


@pytest.mark.capability("E4.1")
def test_a_task_goes_over_rocketmq_and_back(terminal: Terminal, where: Space) -> None:
    provision(terminal, where)
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py", "--route", "hands")
    done = terminal.run("submit", "weather", "Will it rain in Oslo?", "--wait")
    assert (done.code, done.out) == (0, "The forecast: sunny in Oslo.\n")
    assert effects(terminal) == ["forecast Oslo"]


def test_hands_that_die_with_a_command_over_rocketmq_do_it_once(
    terminal: Terminal, where: Space
) -> None:
    provision(terminal, where)
    terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py", "--route", "hands")
    waiting = terminal.start("submit", "weather", "hold it", "--wait", "--json")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    hands.kill()
    terminal.host("hands", "app.py", "--route", "hands")
    waiting.event("waiting", reason="UNKNOWN_OUTCOME", seconds=60)
    assert effects(terminal) == ["entered it"]


@pytest.mark.slow
@pytest.mark.chaos
def test_turns_go_on_when_the_server_is_killed_and_nothing_is_done_twice(tmp_path: Path) -> None:
    server = NativeServer("rocketmq", programs=["java"])
    try:
        where = started(server)
        terminal = terminal_in(tmp_path, where)
        try:
            play_a_kill(terminal, where, server)
        finally:
            terminal.close()
    finally:
        server.drop()


def play_a_kill(terminal: Terminal, where: Space, server: NativeServer) -> None:
    provision(terminal, where)
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py", "--route", "hands")
    cities = [f"City{number}" for number in range(12)]
    for city in cities[:6]:
        assert terminal.run("submit", "weather", f"rain in {city}").code == 0
    server.kill()
    for city in cities[6:]:  # submitting never waits for a broker
        assert terminal.run("submit", "weather", f"rain in {city}").code == 0
    server.start()

    def completed() -> bool:
        return [turn["phase"] for turn in terminal.turns()] == ["COMPLETED"] * 12

    until(completed, "every Turn is completed", 60)
    assert sorted(effects(terminal)) == sorted(f"forecast {city}" for city in cities)


def test_the_other_package_is_refused_at_start_and_by_doctor(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "weather.yaml").write_text(SCRIPT)
    installed = tmp_path / "site" / "rocketmq_client_python-2.0.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rocketmq-client-python\nVersion: 2.0.0\n"
    )
    command = "pip uninstall -y rocketmq-client-python"
    terminal = Terminal(tmp_path)
    try:
        terminal.host("brain", "app.py").stop()
        site = str(tmp_path / "site")
        start = terminal.run("brain", "app.py", "--broker", "rocketmq://h", PYTHONPATH=site)
        assert start.code == 2 and command in start.err
        doctor = terminal.run("doctor", "--json", PYTHONPATH=site)
        assert doctor.code == 6
        assert any(command in problem for problem in doctor.value["problems"])
    finally:
        terminal.close()
