"""A Brain and its Hands with RocketMQ between them: real processes, started by one address."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.rocketmq import Space, a_space, started
from support.rocketmq_app import APP, SCRIPT, effects, provision, terminal_in
from support.servers.native import NativeServer
from support.terminal import Terminal, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]


@pytest.fixture
def where() -> Space:
    return a_space()


@pytest.fixture
def terminal(tmp_path: Path, where: Space) -> Iterator[Terminal]:
    found = terminal_in(tmp_path, where)
    yield found
    found.close()


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
    server = NativeServer("rocketmq", programs=["java"], asked=True)
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
    submit(terminal, cities[:6])
    server.kill()
    submit(terminal, cities[6:])  # which never waits for a broker
    server.start()

    def completed() -> bool:
        return [turn["phase"] for turn in terminal.turns()] == ["COMPLETED"] * 12

    until(completed, "every Turn is completed", 60)
    assert sorted(effects(terminal)) == sorted(f"forecast {city}" for city in cities)


def submit(terminal: Terminal, cities: Sequence[str]) -> None:
    """The first one as a process that knows the broker, whose start is the price of all the others."""
    assert terminal.run("submit", "weather", f"rain in {cities[0]}").code == 0
    for city in cities[1:]:
        assert terminal.here("submit", "weather", f"rain in {city}").code == 0


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
