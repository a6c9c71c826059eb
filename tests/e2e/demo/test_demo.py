"""`nerve demo` as it is shipped: four kills, one Turn, and the proof counted again by this test."""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nerve.deploy.demo.proof import proof
from support.demo_run import DemoRun, Line, file_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """One run to its end, kept."""
    with DemoRun(tmp_path_factory.mktemp("demo"), "--keep", "--json") as run:
        code = run.end()
        assert (code, run.errors) == (0, "")
        yield run


@pytest.fixture(scope="module")
def root(run: DemoRun) -> Path:
    [folder] = run.folders
    return folder


def done(run: DemoRun) -> Line:
    [line] = run.of("done")
    return line


def tools(run: DemoRun) -> dict[str, Any]:
    return {tool["execution"]: tool for tool in done(run)["tools"]}


def test_it_kills_the_brain_once_and_the_hands_three_times(run: DemoRun) -> None:
    kills = run.of("kill")
    assert [kill["role"] for kill in kills] == ["brain", "hands", "hands", "hands"]
    assert len({kill["pid"] for kill in kills}) == 4
    assert {kill["pid"] for kill in kills} < set(run.pids)
    assert all("SIGKILL" in kill["text"] for kill in kills)


def test_no_process_is_left(run: DemoRun) -> None:
    assert len(run.pids) == len(set(run.pids)) == 7
    assert run.running == []


@pytest.mark.capability("E2.2")
def test_every_effect_happened_once(root: Path) -> None:
    effects = file_lines(root / "effects.jsonl")
    assert Counter((line["effect"], line["for"]) for line in effects) == {
        ("ticket", "Checkout is failing"): 1,
        ("page", "payments"): 1,
        ("page", "database"): 1,
    }
    assert len({line["execution"] for line in effects}) == 3


@pytest.mark.capability("E2.2")
def test_what_waited_for_a_slot_ran_once_in_the_next_process(run: DemoRun, root: Path) -> None:
    first, second = [line["pid"] for line in run.of("started") if line["role"] == "hands"][:2]
    calls = file_lines(root / "calls.jsonl")
    begun = {line["execution"] for line in calls if line["pid"] == first}
    later = Counter(line["execution"] for line in calls if line["pid"] == second)
    known = {execution: tool["tool"] for execution, tool in tools(run).items()}
    waited = {
        execution: count
        for execution, count in later.items()
        if execution not in begun and known[execution] != "page_on_call"
    }
    assert len(waited) >= 3
    assert set(waited.values()) == {1}
    assert "open_ticket" in {known[execution] for execution in waited}


@pytest.mark.capability("C3.1")
def test_every_model_answer_was_asked_for_once(root: Path) -> None:
    keys = [line["key"] for line in file_lines(root / "model-requests.jsonl")]
    assert len(keys) == len(set(keys)) == 6


@pytest.mark.capability("D8.1", "D8.2", "F11.3")
def test_the_tool_killed_after_its_effect_is_reconciled_as_succeeded_and_never_runs_again(
    run: DemoRun, root: Path
) -> None:
    pages = [tool for tool in tools(run).values() if tool["tool"] == "page_on_call"]
    assert [(page["outcome"], page["effect"]) for page in pages] == [
        ("SUCCEEDED", "completed"),
        ("FAILED", "none"),
        ("SUCCEEDED", "completed"),
    ]
    entered = Counter(line["execution"] for line in file_lines(root / "calls.jsonl"))
    assert [entered[page["execution"]] for page in pages] == [1, 1, 1]
    written = [line["execution"] for line in file_lines(root / "effects.jsonl")]
    assert [written.count(page["execution"]) for page in pages] == [1, 0, 1]


def test_the_agent_decides_again_after_a_page_that_was_not_sent(run: DemoRun) -> None:
    unsent, again = [
        tool for tool in tools(run).values() if tool["arguments"].get("team") == "database"
    ]
    assert unsent["requested_at"] < again["requested_at"]
    assert unsent["origin_step"] != again["origin_step"]


def test_why_says_in_plain_words_that_nobody_knows(run: DemoRun) -> None:
    reasons = [line["text"] for line in run.lines if line.get("who") == "why"]
    assert len(reasons) == 2
    for reason in reasons:
        assert "is UNKNOWN: its host died while the tool may have been running" in reason
        assert "It is not run again" in reason


@pytest.mark.capability("C1.3", "C1.4", "C1.5")
def test_one_turn_goes_on_through_it_all(run: DemoRun) -> None:
    found = done(run)
    assert found["phase"] == "COMPLETED"
    assert "Whoever is on call for database was paged." in found["text"]
    assert found["runs"][0]["state"] == "LOST"
    assert [each["state"] for each in found["runs"][1:-1]] == ["PARKED"] * 5
    resumed = [step["resumed_from_step_id"] for step in found["steps"]]
    assert resumed[2] == f"{found['turn']}.r1.s2"
    assert {each["run"].partition(".")[0] for each in found["runs"]} == {found["turn"]}


def test_the_proof_needs_no_ledger(run: DemoRun, root: Path, tmp_path: Path) -> None:
    for name in ("effects.jsonl", "calls.jsonl", "model-requests.jsonl"):
        shutil.copy(root / name, tmp_path / name)
    killed = run.of("kill")[1]["pid"]
    claims = proof(tmp_path, first_hands=killed, at_once=6)
    assert [claim.holds for claim in claims] == [True, True, True]


@pytest.mark.parametrize("command", ["ls", "show", "why", "tail"])
def test_what_is_kept_can_be_looked_at(run: DemoRun, root: Path, command: str) -> None:
    what = [] if command == "ls" else [done(run)["turn"]]
    found = subprocess.run(
        [sys.executable, "-m", "nerve.deploy", command, *what, "--dir", str(root / "state")],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert found.returncode == 0, found.stderr
    assert "COMPLETED" in found.stdout or "completed" in found.stdout + found.stderr


def test_without_a_terminal_it_speaks_plainly_and_leaves_nothing(tmp_path: Path) -> None:
    with DemoRun(tmp_path) as run:
        text, _ = run.process.communicate(timeout=55)
        assert run.process.returncode == 0, run.errors
        assert run.folders == []
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert text.isascii() or "…" in text
    lanes = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert lanes["brain"].count("X") == 1
    assert lanes["hands"].count("X") == 3
    assert "?" in lanes["turn"]
    assert text.count(" yes ") == 3
