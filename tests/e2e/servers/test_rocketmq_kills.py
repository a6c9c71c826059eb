"""Brain and Hands killed where RocketMQ is published to, received from and acknowledged: nothing is done twice."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.rocketmq import Space, a_space
from support.rocketmq_app import effects, provision, terminal_in
from support.terminal import Terminal, until

pytestmark = [
    pytest.mark.external,
    pytest.mark.slow,
    pytest.mark.chaos,
    pytest.mark.timeout(180),
]

POINTS = ("before_publish", "after_publish", "received", "before_ack", "after_ack")


@pytest.fixture
def where() -> Space:
    return a_space()


@pytest.fixture
def terminal(tmp_path: Path, where: Space) -> Iterator[Terminal]:
    found = terminal_in(tmp_path, where)
    yield found
    found.close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("role", ["brain", "hands"])
def test_a_host_killed_at_a_message_leaves_nothing_undone_and_nothing_done_twice(
    terminal: Terminal, where: Space, role: str, point: str
) -> None:
    provision(terminal, where)
    faults = {role: f"common.rocketmq.{point}=kill@1"}
    hosts = {
        each: terminal.host(each, "app.py", NERVE_FAULTS=faults.get(each, ""))
        for each in ("brain", "hands")
    }
    assert terminal.run("submit", "weather", "rain in Oslo").code == 0
    assert hosts[role].ended(60) == -signal.SIGKILL
    terminal.host(role, "app.py")
    until(lambda: settled(terminal), "the Turn is completed, or its tool is UNKNOWN", 60)
    done = effects(terminal)
    assert len(done) <= 1
    if role == "brain":  # no tool ran in it, so nothing may be in doubt
        assert [turn["phase"] for turn in terminal.turns()] == ["COMPLETED"]
        assert done == ["forecast Oslo"]


def settled(terminal: Terminal) -> bool:
    (turn,) = terminal.turns()
    return turn["phase"] == "COMPLETED" or "UNKNOWN" in terminal.here("show", turn["turn"]).out
