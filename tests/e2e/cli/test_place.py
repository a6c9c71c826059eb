"""The state directory and what is told of it: doctor, moved and copied folders, lost ledgers, metrics."""

import json
import shutil
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nerve.common.settings import Settings, describe
from support.terminal import Terminal, until


def effects(terminal: Terminal) -> list[str]:
    path = terminal.folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.report("U117")
def test_doctor_tells_ledgers_hosts_queues_and_every_setting_in_force(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py")
    terminal.run("submit", "weather", "rain in Oslo", "--wait")
    changed = {"NERVE_SCAN_SECONDS": "2.5", "NERVE_LEASE_SECONDS": "45"}
    found = terminal.run("doctor", "--json", **changed).value
    ledgers = {each["name"]: each for each in found["ledgers"]}
    assert sorted(ledgers) == ["brain", "hands-hands"]
    for name, process in (("brain", brain), ("hands-hands", hands)):
        (host,) = ledgers[name]["hosts"]
        assert (host["pid"], host["alive"], host["lock"]) == (process.pid, True, "held")
        assert (ledgers[name]["found"]["epoch"], ledgers[name]["found"]["version"]) == (1, 2)
    assert found["problems"] == []
    shown = {each["name"]: each["value"] for each in found["settings"]}
    assert (shown["scan_seconds"], shown["lease_seconds"]) == (2.5, 45.0)
    assert set(shown) == {each.name for each in describe(Settings())}
    text = terminal.here("doctor").out
    assert "Nothing is wrong." in text
    assert "NERVE_LEASE_SECONDS" in text


def test_doctor_names_a_host_that_is_gone(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    brain.kill()
    done = terminal.here("doctor")
    assert done.code == 6
    assert f"pid {brain.pid}" in done.out.partition("Problems:")[2]


@pytest.mark.rule(25)
@pytest.mark.parametrize("kind", ["moved", "copy"])
def test_a_folder_from_elsewhere_is_refused_until_it_is_adopted(
    terminal: Terminal, kind: str
) -> None:
    terminal.host("brain", "app.py").stop()
    terminal.host("hands", "app.py").stop()
    turn = terminal.here("submit", "weather", "rain in Oslo").out.strip()
    old, new = terminal.folder / ".nerve", terminal.folder / "elsewhere"
    shutil.copytree(old, new)
    if kind == "moved":
        shutil.rmtree(old)
    for command in (("brain", "app.py"), ("ls",), ("doctor",)):
        refused = terminal.run(*command, "--dir", "elsewhere", "--json")
        assert (refused.code, refused.error["code"]) == (3, "wrong_ledger")
        assert f"--adopt {kind}" in refused.error["next_step"]
    adopted = terminal.here("doctor", "--dir", "elsewhere", "--adopt", kind)
    assert (adopted.code, f"adopted as {kind}" in adopted.out) == (0, True)
    found = terminal.here("doctor", "--dir", "elsewhere", "--json").value
    assert [each["found"]["epoch"] for each in found["ledgers"]] == [2, 2]
    terminal.host("brain", "app.py", "--dir", "elsewhere")
    terminal.host("hands", "app.py", "--dir", "elsewhere")
    assert terminal.run("tail", turn, "--dir", "elsewhere").out == "The forecast: sunny in Oslo.\n"


@pytest.mark.rule(25)
def test_a_folder_on_which_a_host_runs_is_not_adopted(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    done = terminal.here("doctor", "--adopt", "moved", "--json")
    assert (done.code, str(brain.pid) in done.error["message"]) == (3, True)


@pytest.mark.rule(13, 25)
def test_a_lost_hands_ledger_is_not_made_anew_in_silence(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py")
    turn = terminal.here("submit", "weather", "hold it").out.strip()
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    hands.kill()
    for path in (terminal.folder / ".nerve").glob("hands-hands.db*"):
        path.unlink()
    refused = terminal.run("hands", "app.py", "--json")
    assert (refused.code, refused.error["code"]) == (3, "wrong_ledger")
    assert "--forget hands-hands" in refused.error["next_step"]
    assert terminal.here("doctor", "--forget", "hands-hands").code == 0
    terminal.host("hands", "app.py")
    until(
        lambda: "UNKNOWN_OUTCOME" in terminal.here("why", turn, "--json").value["reasons"],
        "what may have run is UNKNOWN",
    )
    assert effects(terminal) == ["entered it"]
    there = terminal.here("doctor", "--forget", "hands-hands", "--json")
    assert (there.code, there.error["code"]) == (3, "conflict")
    unknown = terminal.here("doctor", "--forget", "hands-other", "--json")
    assert (unknown.code, unknown.error["code"]) == (4, "not_found")


def scraped(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_every_process_say_what_the_ledgers_hold_and_label_no_identity(
    terminal: Terminal,
) -> None:
    brain = terminal.host("brain", "app.py", "--metrics", "127.0.0.1:0")
    hands = terminal.host("hands", "app.py", "--metrics", "127.0.0.1:0")
    for number in range(3):
        terminal.run("submit", "weather", "rain in Oslo", "--request-id", f"r{number}", "--wait")
    told = scraped(brain.event("ready")["metrics"])
    done = frozenset({("ledger", "brain"), ("route", "hands"), ("outcome", "SUCCEEDED")})
    assert told["nerve_ledger_executions", done] == 3
    assert told["nerve_ledger_turns", frozenset({("phase", "COMPLETED")})] == 3
    told |= scraped(hands.event("ready")["metrics"])
    done = frozenset({("ledger", "hands-hands"), ("route", "hands"), ("outcome", "SUCCEEDED")})
    assert told["nerve_ledger_executions", done] == 3
    for name in ("nerve_hop_seconds_count", "nerve_bundle_envelopes_count"):
        assert told[name, frozenset({("side", "brain")})] >= 1
        assert told[name, frozenset({("side", "hands")})] >= 1
    assert told["nerve_commit_seconds_count", frozenset({("side", "brain")})] >= 1
    turns = [turn["turn"] for turn in terminal.turns()]
    labels = {value for _, pairs in told for _, value in pairs}
    assert not [value for value in labels if any(turn in value for turn in turns)]
    assert "nerve_ledger_turns" in terminal.here("metrics").out


def test_a_port_that_is_taken_is_said(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py", "--metrics", "127.0.0.1:0")
    done = terminal.run("hands", "app.py", "--metrics", brain.event("ready")["metrics"])
    assert (done.code, "--metrics" in done.err) == (6, True)


@pytest.mark.capability("D1.2", "D1.3", "H4.2")
def test_a_brain_runs_on_an_exported_catalog_without_any_tool_code(terminal: Terminal) -> None:
    exported = terminal.here("catalog", "app.py")
    assert sorted(each["name"] for each in json.loads(exported.out)["bindings"]) == [
        "forecast",
        "hold",
    ]
    (terminal.folder / "catalog.json").write_text(exported.out)
    (terminal.folder / "brain.py").write_text(
        "from pathlib import Path\n"
        "from nerve.brain.agents.react import ReactAgent, ScriptedModel\n"
        "from nerve.protocol import Catalog\n"
        'tools = Catalog.load(Path("catalog.json").read_bytes().strip())\n'
        'model = ScriptedModel.from_file("weather.yaml")\n'
        'agent = ReactAgent("weather", version="1", model=model, tools=tools)\n'
    )
    terminal.host("brain", "brain.py")
    terminal.host("hands", "app.py")
    done = terminal.run("submit", "weather", "rain in Oslo", "--wait")
    assert done.out == "The forecast: sunny in Oslo.\n"
