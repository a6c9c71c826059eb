"""A Brain and its Hands with RabbitMQ between them: provisioned by a command, started by one address, looked at."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.rabbit import a_virtual_host, manage
from support.rocketmq_app import APP, SCRIPT, effects
from support.servers.rabbitmq import MANAGEMENT
from support.terminal import Terminal, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(180)]


@pytest.fixture
def url() -> Iterator[str]:
    with a_virtual_host() as found:
        yield found


@pytest.fixture
def terminal(tmp_path: Path, url: str) -> Iterator[Terminal]:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "weather.yaml").write_text(SCRIPT)
    found = Terminal(tmp_path, {"NERVE_BROKER": url})
    yield found
    found.close()


@pytest.mark.capability("E10.1", "E10.2", "E3.1")
def test_what_is_missing_is_named_made_by_one_command_and_then_a_task_goes_over_it(
    terminal: Terminal, url: str
) -> None:
    refused = terminal.run("hands", "app.py", "--route", "hands")
    assert refused.code == 4
    for each in ("nerve.local.hands.commands", "nerve.local.hands.controls", "nerve provision"):
        assert each in refused.err
    assert secret(url) not in refused.err

    checked = terminal.here("provision", "app.py", "--check", "--json", "--broker", url)
    assert checked.code == 4
    assert [each["what"] for each in checked.value["missing"]] == [
        f"the queue nerve.local.hands.{name}"
        for name in ("commands.dead", "commands", "controls.dead", "controls")
    ]
    assert all("rabbitmqadmin" in each["step"] for each in checked.value["missing"])
    assert "no ledger yet" in checked.value["notes"][0]

    made = terminal.here("provision", "app.py", "--json", "--broker", url)
    assert (made.code, made.value["missing"]) == (0, [])
    assert len(made.value["topics"]) == 3
    assert terminal.here("provision", "app.py", "--check", "--broker", url).code == 0

    brain = terminal.host("brain", "app.py")
    hands = terminal.host("hands", "app.py", "--route", "hands")
    done = terminal.run("submit", "weather", "Will it rain in Oslo?", "--wait")
    assert (done.code, done.out) == (0, "The forecast: sunny in Oslo.\n")
    assert effects(terminal) == ["forecast Oslo"]
    assert secret(url) not in brain.text + hands.text


@pytest.mark.capability("E10.2")
def test_a_brain_without_its_queues_says_so_and_starts_when_it_may_make_them(
    terminal: Terminal, url: str
) -> None:
    refused = terminal.run("brain", "app.py", "--json")
    assert (refused.code, refused.error["code"]) == (4, "not_found")
    assert "nerve.local.updates." in refused.err and secret(url) not in refused.err
    terminal.host("brain", "app.py", NERVE_BROKER=f"{url}?create=true").stop()
    assert terminal.host("brain", "app.py").stop() == 0


def test_a_broker_that_is_away_keeps_no_host_from_starting_and_nobody_from_submitting(
    terminal: Terminal,
) -> None:
    away = "amqp://u:a-secret@127.0.0.1:1/"
    brain = terminal.host("brain", "app.py", NERVE_BROKER=away)
    assert terminal.run("submit", "weather", "rain in Oslo", NERVE_BROKER=away).code == 0
    brain.said("did not answer")
    assert brain.stop() == 0
    assert "a-secret" not in brain.text


@pytest.mark.report("U27")
def test_doctor_reaches_the_broker_and_tells_its_limits(terminal: Terminal, url: str) -> None:
    assert terminal.here("provision", "app.py", "--broker", url).code == 0
    policy = {"pattern": "^nerve", "definition": {"delivery-limit": 50, "message-ttl": 3_600_000}}
    manage("PUT", f"policies/{urlsplit(url).path[1:]}/nerve", json.dumps(policy).encode())
    port = urlsplit(MANAGEMENT.address()).port
    asked = ("doctor", "--json", "--broker", f"{url}?management={port}")

    def looked() -> dict[str, Any]:
        found: dict[str, Any] = terminal.here(*asked).value["server"]
        return found

    # A policy is in force a moment after it was set.
    until(lambda: looked()["retention_seconds"] == 3600.0, "the policy is told")
    found = looked()
    assert found["reached"] and found["missing"] == []
    limits = {each["name"]: each for each in found["limits"]}
    assert [50] == [each["value"] for name, each in limits.items() if "delivery limit" in name]
    [timeout] = [each for name, each in limits.items() if name.endswith("consumer_timeout")]
    assert "acknowledged when it is admitted" in timeout["about"]
    assert limits["max_message_size"]["value"] is None
    text = terminal.here("doctor", "--broker", f"{url}?management={port}")
    assert "reached" in text.out and secret(url) not in text.out + text.err


def test_doctor_says_why_a_broker_is_not_reached_and_keeps_its_secret(
    terminal: Terminal, url: str
) -> None:
    assert terminal.here("provision", "app.py", "--broker", url).code == 0
    for away in ("amqp://u:a-secret@127.0.0.1:1/", "rocketmq://u:a-secret@127.0.0.1:1"):
        found = terminal.here("doctor", "--json", "--broker", away)
        assert found.code == 6
        assert found.value["server"]["reached"] is False
        assert "127.0.0.1:1" in found.value["server"]["reason"]
        assert "a-secret" not in found.out + found.err


@pytest.mark.capability("E10.3")
def test_the_age_of_the_oldest_unsent_message_is_held_against_what_the_broker_keeps(
    terminal: Terminal, url: str
) -> None:
    assert terminal.here("provision", "app.py", "--broker", url).code == 0
    host, port = urlsplit(url).path[1:], urlsplit(MANAGEMENT.address()).port
    policy = {"pattern": "^nerve", "definition": {"message-ttl": 1}}
    manage("PUT", f"policies/{host}/nerve", json.dumps(policy).encode())
    address = f"{url}?management={port}"
    # The broker is away for the Brain, so that what it sends stays in its outbox.
    away = "amqp://u:p@127.0.0.1:1/"
    terminal.host("brain", "app.py", NERVE_BROKER=away)
    assert terminal.run("submit", "weather", "rain in Oslo", NERVE_BROKER=away).code == 0

    def told() -> bool:
        problems = terminal.here("doctor", "--json", "--broker", address).value["problems"]
        return any("the oldest unsent message waits" in each for each in problems)

    until(told, "doctor says that it waits longer than a message is kept")


def secret(url: str) -> str:
    found = urlsplit(url).password
    assert found
    return found
