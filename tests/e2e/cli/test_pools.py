"""`nerve pools` and the metrics of a pool: who is there, what waits for whom, and why."""

import sqlite3

import pytest

from support.terminal import Terminal, until


def admitted(terminal: Terminal) -> int:
    connection = sqlite3.connect(terminal.folder / ".nerve" / "hands-hands.db", timeout=10)
    try:
        query = "select count(*) from execution where state = 'ADMITTED'"
        return int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()


@pytest.mark.capability("E9.1")
@pytest.mark.timeout(120)
def test_pools_and_why_tell_who_is_there_and_what_waits_for_what(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py", "--slots", "1")
    terminal.here("submit", "weather", "hold a")
    until(lambda: (terminal.folder / "effects").exists(), "the only slot is taken")
    turns = [
        terminal.here(
            "submit", "weather", f"rain in {city}", "--request-id", f"r-{city}", "--json"
        ).value["turn"]
        for city in ("Rome", "Oslo")
    ]
    until(lambda: admitted(terminal) == 2, "two wait")
    [pool] = terminal.here("pools", "--json").value["pools"]
    assert {name: pool[name] for name in ("route", "replicas", "gone", "slots", "queued")} == {
        "route": "hands",
        "replicas": 1,
        "gone": 0,
        "slots": 1,
        "queued": 0,
    }
    assert (pool["waiting"], pool["running"], pool["unknown"]) == (2, 1, 0)
    assert sum(pool["asked"].values()) == 3
    assert 0 <= pool["waiting_oldest_seconds"] <= pool["running_oldest_seconds"] < 60
    text = terminal.here("pools").out
    assert "Route hands: 1 replica alive with 1 slots" in text
    assert "2 wait for a slot (oldest" in text
    said = "on the route hands: all 1 slots of its Hands are in use."
    until(lambda: said in terminal.here("why", turns[0]).out, "why names the limit")
    hands.kill()
    [pool] = terminal.here("pools", "--json").value["pools"]
    assert (pool["replicas"], pool["gone"], pool["slots"]) == (0, 1, 0)
    assert (pool["waiting"], pool["running"]) == (2, 1)
