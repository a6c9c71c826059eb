"""Fault points: free unless armed, counted exactly, seen by the parent of a killed process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.faults import FaultKind, Hit, InjectedFault, Rule

faults.register("unit", ["unit.a", "unit.b"])


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    faults.disarm()
    yield
    faults.disarm()


def reach(name: str, times: int) -> list[int]:
    """Which of several hits raise."""
    raised: list[int] = []
    for number in range(1, times + 1):
        try:
            faults.point(name)
        except InjectedFault:
            raised.append(number)
    return raised


@pytest.mark.parametrize(
    ("specification", "expected"),
    [
        ("unit.a=raise", [1]),
        ("unit.a=raise@3", [3]),
        ("unit.a=raise@*", [1, 2, 3, 4]),
        ("unit.*=raise@2", [2]),
        ("unit.b=raise@1", []),
        ("unit.a=raise@1; unit.a=raise@4", [1, 4]),
    ],
)
def test_the_named_hit_acts(specification: str, expected: list[int]) -> None:
    with faults.armed(specification):
        assert expected == reach("unit.a", 4)


def test_an_unarmed_point_counts_nothing_and_asks_no_registry() -> None:
    faults.point("nobody.registered.this")
    assert {} == faults.hits()


def test_an_armed_run_refuses_an_unregistered_point() -> None:
    with faults.armed("unit.a=record"), pytest.raises(AssertionError, match="not registered"):
        faults.point("nobody.registered.this")


def test_record_counts_what_was_reached() -> None:
    with faults.armed("*=record"):
        reach("unit.a", 3)
        reach("unit.b", 1)
        counted = faults.hits()
    assert {"unit.a": 3, "unit.b": 1} == counted


async def test_a_hook_is_called_at_each_hit() -> None:
    calls: list[str] = []
    faults.hook("unit.a", lambda: calls.append("a"))
    faults.point("unit.a")
    await faults.apoint("unit.a")
    assert ["a", "a"] == calls


async def test_delays_are_read_in_milliseconds() -> None:
    expected = Rule(pattern="unit.a", kind=FaultKind.DELAY, delay_seconds=0.05)
    assert [expected] == faults.parse("unit.a=delay:50")
    with faults.armed("unit.a=delay:1"):
        await faults.apoint("unit.a")
        faults.point("unit.a")


@pytest.mark.parametrize("text", ["unit.a", "unit.a=explode", "unit.a=kill@soon", "=kill"])
def test_a_malformed_specification_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="NERVE_FAULTS holds"):
        faults.parse(text)


def test_a_misspelt_name_is_told() -> None:
    with faults.armed("unit.a=record;unit.typo=kill"):
        assert ["unit.typo"] == faults.unknown_rules()


def test_names_are_listed_by_room_and_must_carry_it() -> None:
    assert ("unit.a", "unit.b") == faults.names("unit")
    with pytest.raises(ValueError, match="must start with"):
        faults.register("unit", ["other.a"])


CHILD = """
from nerve.common import faults
faults.register("unit", ["unit.a"])
print("ready", flush=True)
for _ in range(5):
    faults.point("unit.a")
print("survived", flush=True)
"""


def run_child(specification: str, log: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "NERVE_FAULTS": specification, "NERVE_FAULTS_LOG": str(log)}
    return subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=30
    )


def test_a_killed_process_leaves_the_name_of_its_point(tmp_path: Path) -> None:
    log = tmp_path / "faults.log"
    child = run_child("unit.a=kill@3", log)
    assert -signal.SIGKILL == child.returncode
    assert "ready\n" == child.stdout
    [hit] = faults.read_log(log)
    assert Hit(pid=hit.pid, name="unit.a", count=3, kind=FaultKind.KILL) == hit


def test_several_processes_share_a_log(tmp_path: Path) -> None:
    log = tmp_path / "faults.log"
    for _ in range(2):
        assert 0 == run_child("unit.a=record", log).returncode
    hits = faults.read_log(log)
    assert 10 == len(hits)
    assert 2 == len({hit.pid for hit in hits})


def test_no_log_is_no_hits(tmp_path: Path) -> None:
    assert [] == faults.read_log(tmp_path / "absent.log")


IN_A_THREAD = """
import os, threading, time
from nerve.common import faults
faults.register("unit", ["unit.a"])

def work():
    faults.point("unit.a")
    os.write(1, b"past")

threading.Thread(target=work).start()
time.sleep(30)
"""


def test_a_stop_in_a_thread_lets_nothing_run_past_its_point(tmp_path: Path) -> None:
    environment = {**os.environ, "NERVE_FAULTS": "unit.a=stop"}
    for number in range(10):
        written = tmp_path / str(number)
        with written.open("wb") as output:
            child = subprocess.Popen(
                [sys.executable, "-c", IN_A_THREAD], env=environment, stdout=output
            )
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        child.kill()
        child.wait(timeout=30)
        assert os.WIFSTOPPED(status)
        assert b"" == written.read_bytes()
