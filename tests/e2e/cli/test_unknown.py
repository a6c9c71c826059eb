"""An outcome that nobody can know: said in plain words, never repeated, settled with evidence once."""

import pytest

from support.terminal import Running, Terminal, until


def effects(terminal: Terminal) -> list[str]:
    path = terminal.folder / "effects"
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def unknown(terminal: Terminal) -> tuple[str, Running]:
    """A Turn whose tool was killed after it was entered, and the Hands that took over."""
    terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py")
    turn = terminal.here("submit", "weather", "hold it").out.strip()
    until(lambda: effects(terminal) == ["entered it"], "the tool runs")
    hands.kill()
    again = terminal.host("hands", "app.py")
    until(
        lambda: "UNKNOWN_OUTCOME" in terminal.here("why", turn, "--json").value["reasons"],
        "the Brain knows that it is UNKNOWN",
    )
    return turn, again


@pytest.mark.capability("D8.1", "D8.2", "D8.5", "F11.3", "C14.1", "H4.2")
@pytest.mark.law(4)
def test_a_killed_tool_is_unknown_until_somebody_says_what_happened(
    terminal: Terminal, unknown: tuple[str, Running]
) -> None:
    turn, _ = unknown
    assert "UNKNOWN" in terminal.here("why", turn).out
    (open_one,) = terminal.here("reconcile", "--json").value["unknown"]
    settle = (
        *("reconcile", open_one["execution"], "--succeeded", "--result", '"held it"'),
        *("--evidence", "the file says so", "--operator", "ann", "--request-id", "o1", "--json"),
    )
    receipt = terminal.run(*settle)
    assert receipt.code == 0
    assert receipt.value["state"] == "SUCCEEDED"
    assert terminal.run(*settle).value == receipt.value
    waited = terminal.run("tail", turn)
    assert (waited.code, waited.out) == (0, "Told: held it\n")
    assert effects(terminal) == ["entered it"]
    assert terminal.here("reconcile", "--json").value["unknown"] == []


@pytest.mark.capability("D8.3")
def test_what_is_not_unknown_cannot_be_settled(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    terminal.host("hands", "app.py")
    turn = terminal.run("submit", "weather", "rain in Oslo", "--wait", "--json").out
    assert turn
    execution = f"{terminal.turns()[0]['turn']}.x1"
    refused = terminal.here("reconcile", execution, "--failed", "--evidence", "none", "--json")
    assert (refused.code, refused.error["code"]) == (3, "wrong_state")
    other = terminal.here("reconcile", f"{execution}9", "--failed", "--evidence", "none", "--json")
    assert (other.code, other.error["code"]) == (4, "unknown_execution")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--evidence", "x"], "--succeeded|--failed|--cancelled"),
        (["--succeeded", "--failed", "--evidence", "x"], "--succeeded|--failed|--cancelled"),
        (["--succeeded"], "evidence"),
        (["--succeeded", "--evidence", "x", "--result", '{"a":1,"a":2}'], "--result"),
        (["--succeeded", "--evidence", "x", "--effect", "some"], "--effect"),
    ],
)
def test_a_verdict_that_is_incomplete_changes_nothing(
    terminal: Terminal, unknown: tuple[str, Running], arguments: list[str], where: str
) -> None:
    turn, _ = unknown
    refused = terminal.here("reconcile", f"{turn}.x1", *arguments, "--json")
    assert refused.code == 2
    assert refused.error["where"].startswith(where)
    assert len(terminal.here("reconcile", "--json").value["unknown"]) == 1
