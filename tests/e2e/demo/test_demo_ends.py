"""However the demo ends, no process outlives it, and a failure keeps its folder and says where."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nerve.common.process import started
from nerve.deploy.demo.proof import Claim, proof
from support.demo_run import DemoRun
from support.waiting import until

STOPPED_CHILD = """
import os, signal, sys
from pathlib import Path
from nerve.common.clock import SystemClock
from nerve.deploy.demo.processes import Processes
root = Path(sys.argv[1])
(root / "script.json").write_text("[]")
with Processes(root, SystemClock()) as processes:
    child = processes.model()
    while not (root / "model.port").exists():
        pass
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    print(child.pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_every_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with DemoRun(tmp_path, "--json") as run:
        run.until("kill", role="brain")
        run.process.send_signal(number)
        assert run.end() == code
    assert run.of("stopped")
    assert run.running == []
    assert run.folders == []


def test_a_reader_who_has_seen_enough_ends_it(tmp_path: Path) -> None:
    with DemoRun(tmp_path, "--json") as run:
        run.until("kill", role="brain")
        assert run.process.stdout is not None
        run.process.stdout.close()
        run.process.wait(timeout=30)
    assert run.errors == ""
    assert run.running == []
    assert run.folders == []


async def test_a_terminal_that_closes_ends_it(tmp_path: Path) -> None:
    outer, inner = os.openpty()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    demo = subprocess.Popen(
        [sys.executable, "-m", "nerve.deploy", "demo"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment,
        start_new_session=True,
    )
    os.close(inner)
    seen = b""
    while b"KILL" not in seen:
        seen += os.read(outer, 4096)
    os.close(outer)
    pids = [int(each) for each in re.findall(rb"pid (\d+)", seen)]
    demo.wait(timeout=30)
    assert b"\x1b[1;31mKILL" in seen
    assert len(pids) >= 3
    await until(lambda: all(started(pid) is None for pid in pids), "its processes end with it")
    assert list(tmp_path.iterdir()) == []


async def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    with DemoRun(tmp_path, "--json") as run:
        run.until("kill", role="hands")
        run.process.kill()
        run.process.wait(timeout=30)
    assert len(run.pids) >= 4
    await until(lambda: not run.running, "its processes end with it")


async def test_not_even_a_stopped_process_outlives_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", STOPPED_CHILD, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent.stdout as said:
        pid = int(said.readline())
    assert started(pid) is not None
    parent.kill()
    parent.wait(timeout=30)
    await until(lambda: started(pid) is None, "the stopped process ends too")


def test_a_process_that_dies_by_itself_fails_the_demo_which_keeps_its_folder(
    tmp_path: Path,
) -> None:
    with DemoRun(tmp_path, "--json") as run:
        model = run.until("started", role="model")
        run.until("started", role="brain")
        os.kill(model["pid"], signal.SIGKILL)
        assert run.end() == 1
    [failed] = run.of("failed")
    [folder] = run.folders
    assert f"model process (pid {model['pid']}) ended by itself" in failed["text"]
    assert str(folder) in failed["text"]
    assert (folder / "state" / "brain.db").exists()
    assert run.running == []


@pytest.mark.parametrize("place", ["file", "full", "/proc/nowhere"])
def test_a_folder_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "own").touch()
    with DemoRun(tmp_path, "--dir", str(tmp_path / place)) as run:
        assert run.process.wait(timeout=50) in (2, 6)
    assert run.errors.startswith("nerve: ")
    assert run.errors.count("\n") == 1
    assert (tmp_path / "full" / "own").exists()


EFFECTS = (
    '{"effect":"ticket","for":"Checkout is failing","execution":"a"}\n'
    '{"effect":"page","for":"payments","execution":"b"}\n'
    '{"effect":"page","for":"database","execution":"c"}\n'
)
CALLS = (
    '{"tool":"count_trouble","execution":"d","pid":1}\n'
    '{"tool":"count_trouble","execution":"d","pid":2}\n'
    '{"tool":"open_ticket","execution":"a","pid":2}\n'
)
REQUESTS = "".join(f'{{"key":"t/model:{number}"}}\n' for number in range(1, 7))


def claims(folder: Path, effects: str, calls: str, requests: str) -> list[bool]:
    (folder / "effects.jsonl").write_text(effects)
    (folder / "calls.jsonl").write_text(calls)
    (folder / "model-requests.jsonl").write_text(requests)
    found: list[Claim] = proof(folder, first_hands=1, at_once=2)
    return [claim.holds for claim in found]


def test_the_proof_holds_for_what_must_be_there(tmp_path: Path) -> None:
    assert claims(tmp_path, EFFECTS, CALLS, REQUESTS) == [True, True, True]


@pytest.mark.parametrize(
    "effects",
    ["", EFFECTS + EFFECTS.splitlines()[1] + "\n", EFFECTS.replace("database", "payments")],
)
def test_the_proof_fails_for_an_effect_that_is_missing_or_doubled(
    tmp_path: Path, effects: str
) -> None:
    assert claims(tmp_path, effects, CALLS, REQUESTS) == [False, True, True]


@pytest.mark.parametrize(
    "calls",
    [
        "",
        CALLS + CALLS.splitlines()[2] + "\n",
        CALLS.replace('"a","pid":2', '"a","pid":1'),
    ],
)
def test_the_proof_fails_for_a_waiting_call_that_was_lost_or_repeated(
    tmp_path: Path, calls: str
) -> None:
    assert claims(tmp_path, EFFECTS, calls, REQUESTS) == [True, False, True]


@pytest.mark.parametrize("requests", ["", REQUESTS + REQUESTS.splitlines()[0] + "\n"])
def test_the_proof_fails_for_an_answer_that_was_asked_for_twice_or_never(
    tmp_path: Path, requests: str
) -> None:
    assert claims(tmp_path, EFFECTS, CALLS, requests) == [True, True, False]
