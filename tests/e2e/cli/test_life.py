"""A task through separate processes: submitted, watched, killed, gone on with, drained."""

import signal

import pytest

from support.terminal import Terminal, until


def effects(terminal: Terminal) -> list[str]:
    path = terminal.folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


def questions(terminal: Terminal) -> int:
    """How often the model was asked."""
    return len((terminal.folder / "model.log").read_text().splitlines())


@pytest.mark.capability("E6.1", "H4.1", "H4.2", "A9.1", "A9.2", "G1.1")
def test_brain_and_hands_apart_bring_a_submitted_task_to_its_answer(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py", "--route", "hands")
    done = terminal.run(
        "submit", "weather", "Will it rain in Oslo?", "--request-id", "r1", "--wait"
    )
    assert (done.code, done.out) == (0, "The forecast: sunny in Oslo.\n")
    assert effects(terminal) == ["forecast Oslo"]
    (turn,) = terminal.turns()
    assert turn["phase"] == "COMPLETED"


@pytest.mark.capability("F11.1", "F11.2")
@pytest.mark.report("U16")
def test_show_tells_requested_admitted_completed_received_and_applied_apart(
    terminal: Terminal,
) -> None:
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py")
    terminal.run("submit", "weather", "rain in Oslo", "--wait")
    (turn,) = terminal.turns()
    shown = terminal.here("show", turn["turn"][:24], "--json").value
    (tool,) = shown["tools"]
    times = [
        tool[f"{name}_at"] for name in ("requested", "admitted", "completed", "received", "applied")
    ]
    assert times == sorted(times)
    assert [run["state"] for run in shown["runs"]] == ["PARKED", "FINISHED"]
    assert len(shown["receipts"]) == 2
    for word in ("requested", "admitted", "completed", "received", "applied"):
        assert word in terminal.here("show", turn["turn"]).out


@pytest.mark.capability("E2.2", "G1.2", "D3.1")
@pytest.mark.report("U10", "U16", "U23")
@pytest.mark.rule(5)
@pytest.mark.law(5)
def test_wait_survives_the_death_of_the_brain_and_nothing_is_done_twice(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    terminal.host("hands", "app.py")
    waiting = terminal.start("submit", "weather", "hold it", "--wait", "--json")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    brain.kill()
    assert "`nerve brain app.py" in waiting.event("waiting", reason="NO_HOST")["text"]
    terminal.host("brain", "app.py")
    (terminal.folder / "go-it").touch()
    assert waiting.ended() == 0
    assert effects(terminal) == ["entered it", "held it"]
    assert questions(terminal) == 2


@pytest.mark.capability("C14.1")
def test_without_a_host_wait_says_at_once_what_starts_one_and_goes_on(terminal: Terminal) -> None:
    waiting = terminal.start("submit", "weather", "rain in Oslo", "--wait")
    waiting.said("`nerve dev app.py")
    terminal.host("brain", "app.py")
    waiting.said("`nerve hands app.py --route hands")
    terminal.host("hands", "app.py")
    assert waiting.ended() == 0
    assert "The forecast: sunny in Oslo." in waiting.text


@pytest.mark.capability("A4.3")
def test_a_watcher_that_is_interrupted_cancels_nothing_and_says_so(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py")
    waiting = terminal.start("submit", "weather", "hold it", "--wait")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    waiting.signal(signal.SIGINT)
    assert waiting.ended() == 130
    assert "nothing was cancelled" in waiting.text
    (turn,) = terminal.turns()
    assert turn["phase"] == "WAITING"
    (terminal.folder / "go-it").touch()
    assert terminal.run("tail", turn["turn"]).code == 0
    assert effects(terminal) == ["entered it", "held it"]


@pytest.mark.capability("A1.2", "A1.3")
@pytest.mark.law(6)
def test_the_same_request_is_the_same_turn_and_another_content_is_refused(
    terminal: Terminal,
) -> None:
    terminal.host("brain", "app.py")
    first = terminal.here("submit", "weather", "rain in Oslo", "--request-id", "r1")
    again = terminal.here("submit", "weather", "rain in Oslo", "--request-id", "r1")
    assert (first.code, first.out) == (again.code, again.out) == (0, again.out)
    other = terminal.here("submit", "weather", "rain in Rome", "--request-id", "r1", "--json")
    assert (other.code, other.error["code"]) == (3, "request_conflict")
    assert len(terminal.turns()) == 1


def test_submit_tells_the_request_id_it_made_before_it_sends(terminal: Terminal) -> None:
    waiting = terminal.start("submit", "weather", "rain in Oslo", "--wait", "--json")
    waiting.event("no_host")
    made = waiting.event("request")["request_id"]
    waiting.kill()
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py")
    done = terminal.run("submit", "weather", "rain in Oslo", "--request-id", made, "--wait")
    assert done.code == 0
    assert len(terminal.turns()) == 1


def test_a_timeout_ends_the_waiting_with_its_own_code_and_cancels_nothing(
    terminal: Terminal,
) -> None:
    terminal.host("brain", "app.py")
    done = terminal.run("submit", "weather", "rain in Oslo", "--wait", "--timeout", "0.5", "--json")
    assert done.code == 5
    assert done.error["details"]["request_id"]
    terminal.host("hands", "app.py")
    until(lambda: terminal.turns()[0]["phase"] == "COMPLETED", "the Turn goes on")


def test_a_failed_turn_has_its_own_exit_code(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    done = terminal.run("submit", "weather", "sing", "--wait")
    assert done.code == 1
    assert "FAILED" in done.out


@pytest.mark.capability("B4.1", "B4.2")
def test_cancel_ends_a_queued_turn_at_once_and_waits_honestly_for_an_active_one(
    terminal: Terminal,
) -> None:
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py")
    first = terminal.here("submit", "weather", "hold it", "--session", "s1").out.strip()
    second = terminal.here("submit", "weather", "rain in Rome", "--session", "s1").out.strip()
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    assert terminal.here("cancel", second, "--json").value["phase"] == "CANCELLED"
    settling = terminal.here("cancel", first, "--json").value
    assert settling["phase"] == "SETTLING"
    assert any("hold" in sentence for sentence in settling["why"])
    (terminal.folder / "go-it").touch()
    until(lambda: terminal.turns()[-1]["phase"] == "CANCELLED", "it settles")


@pytest.mark.capability("C8.2", "D15.1")
@pytest.mark.report("U111", "U113", "U22")
def test_sigterm_lets_a_tool_end_and_the_process_leaves_with_zero(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py")
    terminal.here("submit", "weather", "hold it")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    hands.signal(signal.SIGTERM)
    assert any("hold" in tool for tool in hands.event("draining")["tools"])
    (terminal.folder / "go-it").touch()
    assert hands.ended() == 0
    until(lambda: terminal.turns()[0]["phase"] == "COMPLETED", "its result is applied")
    assert brain.stop() == 0
    assert effects(terminal) == ["entered it", "held it"]


@pytest.mark.capability("D15.2", "D15.3")
def test_a_second_signal_stops_now_and_says_what_nobody_can_know(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py")
    terminal.here("submit", "weather", "hold it")
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    hands.signal(signal.SIGINT)
    hands.event("draining")
    hands.signal(signal.SIGINT)
    assert hands.ended() == 5
    assert any("hold" in tool for tool in hands.event("left")["tools"])
    (unknown,) = terminal.here("reconcile", "--json").value["unknown"]
    assert unknown["tool"] == "hold"
