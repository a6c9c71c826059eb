"""Whether a recorded process is still that process: only what is seen counts as proof."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nerve.common import process, writelock
from nerve.common.process import ProcessMark, is_same, own, proven_gone, started
from support.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_this_process_is_itself_and_not_gone() -> None:
    assert is_same(own())
    assert not proven_gone(own())


@pytest.mark.rule(3)
def test_an_ended_process_is_gone_and_a_reused_number_is_another_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        mark = ProcessMark(pid=child.pid, started=started(child.pid) or "", place=process.place())
        assert is_same(mark)
        child.communicate(b"\n")
    assert proven_gone(mark)
    assert not is_same(mark)
    assert proven_gone(replace(own(), started="1"))


def test_a_zombie_owns_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert started(child.pid) is None


@pytest.mark.parametrize(
    "unknown",
    [
        replace(own(), place=""),
        replace(own(), started=""),
        replace(own(), place=":1"),
        replace(own(), pid=2**22 + 1, place=own().place.partition(":")[0] + ":0"),
    ],
)
def test_what_cannot_be_seen_is_not_proven(unknown: ProcessMark) -> None:
    assert not proven_gone(unknown)
    assert not is_same(replace(unknown, place="elsewhere:1"))


@pytest.mark.rule(3)
def test_another_boot_ended_every_process_of_this_machine_and_says_nothing_of_another() -> None:
    mark = replace(own(), place="another-boot:1")
    assert proven_gone(mark)
    assert not proven_gone(mark, one_machine=False)
    assert proven_gone(replace(own(), started="1"), one_machine=False)


async def test_a_stopped_process_is_told_from_a_running_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert not writelock.is_stopped(child.pid)
        child.send_signal(signal.SIGSTOP)
        await until(lambda: writelock.is_stopped(child.pid), "it stops")
        child.send_signal(signal.SIGCONT)
        child.communicate(b"\n")
