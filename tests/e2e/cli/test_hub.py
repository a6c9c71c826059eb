"""Brain and Hands that share nothing but HTTP: a hub between them, killed and started again meanwhile."""

from collections import Counter

import pytest

from support.terminal import Terminal, until

TOKEN = "a-token-of-the-tests"
HUB = {"NERVE_HTTP_TOKEN": TOKEN}


def effects(terminal: Terminal) -> Counter[str]:
    file = terminal.folder / "effects"
    return Counter(file.read_text().splitlines() if file.exists() else ())


@pytest.mark.timeout(150)
def test_turns_end_over_a_hub_that_is_killed_meanwhile_and_nothing_runs_twice(
    terminal: Terminal,
) -> None:
    terminal.environment |= HUB
    hub = terminal.host("hub", "--listen", "127.0.0.1:0", "--dir", "hub")
    url = hub.event("ready")["url"]
    terminal.host("brain", "app.py", "--dir", "b", "--broker", url)
    terminal.host("hands", "app.py", "--dir", "h", "--broker", url)
    first = terminal.here("submit", "weather", "rain in Rome", "--wait", "--dir", "b")
    assert (first.code, "sunny in Rome" in first.out) == (0, True), first
    hub.kill()
    cities = [f"City{number}" for number in range(5)]
    for city in cities:
        # Submitting waits for no broker.
        assert terminal.here("submit", "weather", f"rain in {city}", "--dir", "b").code == 0
    assert effects(terminal) == {"forecast Rome": 1}
    address = url.removeprefix("http://")
    again = terminal.host("hub", "--listen", address, "--dir", "hub")

    def ended() -> bool:
        turns = terminal.here("ls", "--json", "--dir", "b").value["turns"]
        return all(each["phase"] == "COMPLETED" for each in turns)

    until(ended, "every Turn has ended", seconds=60)
    assert effects(terminal) == {f"forecast {city}": 1 for city in ["Rome", *cities]}
    shown = terminal.run("pools", "--json", "--dir", "h", "--broker", url)
    assert shown.code == 0, shown
    [pool] = shown.value["pools"]
    assert (pool["replicas"], pool["queued"]) == (1, 0)
    for running in (hub, again):
        assert TOKEN not in running.text


def test_a_hub_without_a_token_does_not_start(terminal: Terminal) -> None:
    for given in ({}, {"NERVE_HTTP_TOKEN": "short"}, {"NERVE_HTTP_TOKEN_FILE": "absent"}):
        done = terminal.run("hub", "--dir", "hub", **given)
        assert (done.code, "NERVE_HTTP_TOKEN" in done.err) == (2, True), done


def test_a_broker_over_http_needs_the_token_too(terminal: Terminal) -> None:
    done = terminal.run("hands", "app.py", "--broker", "http://127.0.0.1:1")
    assert (done.code, "a hub needs a token" in done.err) == (2, True), done
