"""`nerve dev`: edits are taken in, wrong ones are not, and no running tool is lost to one."""

import json
import signal
from collections.abc import Callable

from support.terminal import Terminal, until


def effects(terminal: Terminal) -> list[str]:
    path = terminal.folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


def edit(terminal: Terminal, change: Callable[[str], str]) -> None:
    """Written aside and moved into place, as editors do."""
    path = terminal.folder / "app.py"
    new = path.with_suffix(".new")
    new.write_text(change(path.read_text()))
    new.replace(path)


def test_one_process_holds_both_and_takes_in_an_edit(terminal: Terminal) -> None:
    dev = terminal.host("dev", "app.py")
    before = terminal.run("submit", "weather", "rain in Oslo", "--wait")
    assert before.out == "The forecast: sunny in Oslo.\n"
    edit(terminal, lambda text: text.replace('f"sunny', 'f"rainy'))
    dev.event("reloaded")
    after = terminal.run("submit", "weather", "rain in Oslo", "--wait")
    assert after.out == "The forecast: rainy in Oslo.\n"
    assert dev.stop() == 0


def test_an_edit_of_a_module_beside_it_or_of_the_script_counts_too(terminal: Terminal) -> None:
    (terminal.folder / "words.py").write_text('WORD = "sunny"\n')
    edit(terminal, lambda text: "from words import WORD\n" + text.replace("sunny in", "{WORD} in"))
    dev = terminal.host("dev", "app.py")
    (terminal.folder / "words.py").write_text('WORD = "foggy"\n')
    dev.event("reloaded")
    done = terminal.run("submit", "weather", "rain in Oslo", "--wait")
    assert done.out == "The forecast: foggy in Oslo.\n"
    script = terminal.folder / "weather.yaml"
    script.write_text(script.read_text().replace("The forecast", "They say"))
    until(lambda: len([e for e in dev.events if e["event"] == "reloaded"]) == 2, "reloaded twice")
    done = terminal.run("submit", "weather", "rain in Oslo", "--wait")
    assert done.out == "They say: foggy in Oslo.\n"


def test_a_syntax_error_keeps_the_old_code_and_shows_the_line(terminal: Terminal) -> None:
    dev = terminal.host("dev", "app.py")
    edit(terminal, lambda text: text + "\ndef broken(:\n")
    said = dev.event("kept")
    line = len((terminal.folder / "app.py").read_text().splitlines())
    assert f"app.py:{line}: SyntaxError" in said["text"]
    assert terminal.run("submit", "weather", "rain in Oslo", "--wait").code == 0
    edit(terminal, lambda text: text.partition("\ndef broken")[0] + "\n")
    dev.event("reloaded")


def test_a_reload_waits_for_a_running_tool_and_says_for_which(terminal: Terminal) -> None:
    dev = terminal.host("dev", "app.py")
    turn = terminal.here("submit", "weather", "hold it").out.strip()
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    edit(terminal, lambda text: text.replace("held {name}", "kept {name}"))
    assert dev.event("draining")["tools"] == [f"hold ({turn}.x1)"]
    (terminal.folder / "go-it").touch()
    dev.event("reloaded")
    assert terminal.run("tail", turn).out == "Told: held it\n"
    assert effects(terminal) == ["entered it", "held it"]


def test_a_changed_tool_under_an_unchanged_version_is_named_with_both_schemas_and_the_ways_on(
    terminal: Terminal,
) -> None:
    dev = terminal.host("dev", "app.py")
    turn = terminal.here("submit", "weather", "hold it").out.strip()
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    edit(
        terminal,
        lambda text: text.replace("forecast(city: str)", "forecast(city: str, day: int = 1)"),
    )
    said = dev.event("kept", code="binding_mismatch")
    assert turn in said["details"]["turns"]
    old, new = said["details"]["old"]["forecast"], said["details"]["new"]["forecast"]
    assert "day" not in json.dumps(old["input_schema"])
    assert "day" in json.dumps(new["input_schema"])
    for words in ('version="2"', "--fresh", turn, "input_schema old:", "input_schema new:"):
        assert words in said["text"]
    (terminal.folder / "go-it").touch()
    dev.event("reloaded")
    assert terminal.run("tail", turn).code == 0


def test_changed_instructions_under_an_unchanged_version_are_named_with_old_and_new(
    terminal: Terminal,
) -> None:
    edit(terminal, lambda text: text.replace("tools=", 'instructions="Be brief.", tools='))
    dev = terminal.host("dev", "app.py")
    turn = terminal.here("submit", "weather", "hold it").out.strip()
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    edit(terminal, lambda text: text.replace("Be brief.", "Be kind."))
    said = dev.event("kept", code="binding_mismatch")
    assert said["details"]["turns"] == [turn]
    words = ("weather/1 changed under", 'version="2"', "--fresh", '"Be brief."', '"Be kind."')
    assert [each for each in words if each not in said["text"]] == []
    (terminal.folder / "go-it").touch()
    dev.event("reloaded")
    assert terminal.run("tail", turn).code == 0


def test_fresh_lets_unfinished_turns_go_on_with_changed_tools(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    turn = terminal.here("submit", "weather", "rain in Oslo").out.strip()
    until(lambda: terminal.turns()[0]["phase"] == "WAITING", "it waits for Hands")
    brain.stop()
    edit(
        terminal,
        lambda text: text.replace(
            "async def hold(name: str)", "async def hold(name: str, n: int = 1)"
        ),
    )
    refused = terminal.run("dev", "app.py")
    assert refused.code == 3
    for words in (turn, 'version="2"', "--fresh", "input_schema old:", "input_schema new:"):
        assert words in refused.err
    terminal.host("dev", "app.py", "--fresh")
    assert terminal.run("tail", turn).code == 0


def test_turns_of_a_version_that_the_file_has_no_more_are_named(terminal: Terminal) -> None:
    terminal.host("brain", "app.py").stop()
    turn = terminal.here("submit", "weather", "rain in Oslo").out.strip()
    edit(terminal, lambda text: text.replace('version="1"', 'version="2"'))
    dev = terminal.host("dev", "app.py")
    assert dev.event("stranded")["turns"] == [turn]


def test_a_second_host_beside_dev_is_refused(terminal: Terminal) -> None:
    dev = terminal.host("dev", "app.py")
    for command in ("dev", "brain", "hands"):
        done = terminal.run(command, "app.py")
        assert done.code == 3
        assert f"pid {dev.pid}" in done.err
    dev.kill()
    brain = terminal.host("brain", "app.py")
    done = terminal.run("dev", "app.py")
    assert (done.code, "needs it alone" in done.err) == (3, True)
    brain.kill()
    terminal.host("dev", "app.py")


def test_a_killed_dev_goes_on_where_it_was(terminal: Terminal) -> None:
    dev = terminal.host("dev", "app.py")
    waiting = terminal.start("submit", "weather", "hold it", "--wait", "--json")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    dev.kill()
    waiting.event("waiting", reason="NO_HOST")
    terminal.host("dev", "app.py")
    waiting.event("waiting", reason="UNKNOWN_OUTCOME")
    settled = terminal.run(
        *("reconcile", f"{terminal.turns()[0]['turn']}.x1", "--failed"),
        *("--evidence", "it was killed before", "--operator", "ann"),
    )
    assert settled.code == 0
    assert waiting.ended() == 0
    assert effects(terminal) == ["entered it"]


def test_once_works_off_what_can_move_and_stops(terminal: Terminal) -> None:
    terminal.host("brain", "app.py").stop()
    terminal.here("submit", "weather", "rain in Oslo")
    terminal.here("submit", "weather", "rain in Rome")
    assert terminal.run("dev", "app.py", "--once").code == 0
    assert [turn["phase"] for turn in terminal.turns()] == ["COMPLETED", "COMPLETED"]


def test_ctrl_c_drains(terminal: Terminal) -> None:
    dev = terminal.host("dev", "app.py")
    terminal.here("submit", "weather", "hold it")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    dev.signal(signal.SIGINT)
    dev.event("draining")
    (terminal.folder / "go-it").touch()
    assert dev.ended() == 0
    assert effects(terminal) == ["entered it", "held it"]
