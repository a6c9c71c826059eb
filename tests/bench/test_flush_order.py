"""The checks can fail: a ledger that skips its flushes is caught, a durable one is not."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import order, shim
from bench.instrument import Instrument
from bench.order import Verdict
from bench.shim import Event

WRITER = """
import sqlite3, sys, time
path, synchronous = sys.argv[1:]
ledger = sqlite3.connect(path, isolation_level=None)
ledger.execute("pragma journal_mode=wal")
ledger.execute(f"pragma synchronous={synchronous}")
ledger.execute("create table answer (text text)")
for n in range(20):
    mark = f"final {n:012d}"
    ledger.execute("insert into answer values (?)", (mark,))
    print(mark, time.monotonic_ns(), sep="=", flush=True)
"""


@pytest.fixture(scope="module")
def instrument(tmp_path_factory: pytest.TempPathFactory) -> Instrument:
    found = Instrument.find(tmp_path_factory.mktemp("shim"))
    if found.shim is None:
        pytest.skip("needs a C compiler")
    return found


def write(directory: Path, variables: Mapping[str, str], synchronous: str) -> dict[str, int]:
    command = [sys.executable, "-c", WRITER, str(directory / "ledger.db"), synchronous]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    pairs = (line.split("=") for line in done.stdout.splitlines())
    return {mark: int(ns) for mark, ns in pairs}


def judged(instrument: Instrument, directory: Path, synchronous: str) -> Verdict:
    launch = instrument.logging(directory)
    assert launch is not None
    told = write(directory, launch.environment, synchronous)
    return order.judge(shim.events(directory / "flushes.log"), told)


def test_a_durable_ledger_acknowledges_after_its_flush(
    instrument: Instrument, tmp_path: Path
) -> None:
    verdict = judged(instrument, tmp_path, "full")
    assert (verdict.early, verdict.bare, verdict.unseen) == ((), 0, 0)
    assert verdict.checked == 20
    assert verdict.holds


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_a_ledger_that_skips_its_flush_is_caught(
    instrument: Instrument, tmp_path: Path, synchronous: str
) -> None:
    verdict = judged(instrument, tmp_path, synchronous)
    assert len(verdict.early) == 20
    assert verdict.bare >= 19
    assert not verdict.holds


def test_commits_and_flushes_are_counted_exactly(instrument: Instrument, tmp_path: Path) -> None:
    before = instrument.counting(tmp_path)
    write(tmp_path, before.environment, "full")
    counters = shim.read_counters(before.environment)
    assert counters is not None
    assert counters.commits == 22  # the journal of the switch to WAL, the table, and 20 rows
    assert counters.flushes >= 20


def test_a_slowed_flush_takes_longer(instrument: Instrument, tmp_path: Path) -> None:
    slow = instrument.slowing(tmp_path)
    assert slow is not None
    started = time.monotonic()
    write(tmp_path, slow.environment, "full")
    assert time.monotonic() - started >= 20 * 0.002


def event(ns: int, kind: str, mark: str = "") -> Event:
    return Event(ns=ns, thread=1, kind=kind, path="brain.db-wal", mark=mark)


def test_an_acknowledgement_during_the_flush_is_early() -> None:
    log = [event(1, "W"), event(2, "M", "final x"), event(3, "B"), event(9, "F")]
    assert order.judge(log, {"final x": 8}).early == ("final x",)
    assert order.judge(log, {"final x": 9}).early == ()


def test_a_flush_that_began_before_the_write_does_not_cover_it() -> None:
    log = [event(1, "B"), event(2, "M", "final x"), event(3, "F")]
    assert order.judge(log, {"final x": 99}).early == ("final x",)


def test_a_check_that_saw_nothing_does_not_hold() -> None:
    verdict = order.judge([event(1, "W"), event(2, "B"), event(3, "F")], {"final x": 9})
    assert verdict.unseen == 1
    assert not verdict.holds
