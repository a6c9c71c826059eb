"""The machine's own speed in the same minutes: empty loops, a bare commit, a doorbell's hop."""

import asyncio
import json
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import processes

LOOPS = 2_000_000
ROW = "x" * 200
GAP_S = 0.002  # a bell is rung at a process that has gone to sleep, not at a spinning one


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Medians; a hop is from the ring to the handler in another, idle asyncio process."""

    loops_ms: float
    commit_ms: float
    commit_p95_ms: float
    hop_ms: float
    load: float


def timed(job: Callable[[], object], count: int) -> list[float]:
    took = list[float]()
    for _ in range(count):
        started = time.perf_counter()
        job()
        took.append((time.perf_counter() - started) * 1e3)
    return sorted(took)


def spin() -> None:
    for _ in range(LOOPS):
        pass


def commits(directory: Path, count: int) -> list[float]:
    connection = sqlite3.connect(directory / "calibrate.db", isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table row (id integer primary key, value text)")
    took = timed(lambda: connection.execute("insert into row (value) values (?)", (ROW,)), count)
    connection.close()
    return took


class _Bell:
    """A bound Unix datagram socket that waits in this process's event loop."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def ring(self, other: Path) -> None:
        self._socket.sendto(b"x", str(other))

    async def heard(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._socket, 16)


async def answer(own: Path, other: Path) -> None:
    bell = _Bell(own)
    print("ready", flush=True)
    while True:
        await bell.heard()
        bell.ring(other)


async def round_trips(bell: _Bell, other: Path, count: int) -> list[float]:
    took = list[float]()
    for _ in range(count):
        await asyncio.sleep(GAP_S)
        started = time.perf_counter()
        bell.ring(other)
        await asyncio.wait_for(bell.heard(), 5)
        took.append((time.perf_counter() - started) * 1e3)
    return took


async def hops(directory: Path, count: int) -> float:
    here, there = directory / "a", directory / "b"
    bell = _Bell(here)
    command = [sys.executable, "-m", "bench.calibrate", "answer", str(there), str(here)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout and other.stdout.readline()
            await round_trips(bell, there, 20)
            return statistics.median(await round_trips(bell, there, count)) / 2
        finally:
            other.kill()


def calibrate(directory: Path, count: int) -> Calibration:
    commit = commits(directory, count)
    with tempfile.TemporaryDirectory(prefix="bells-") as short:
        hop = asyncio.run(hops(Path(short), count))
    return Calibration(
        loops_ms=round(statistics.median(timed(spin, 9)), 2),
        commit_ms=round(statistics.median(commit), 4),
        commit_p95_ms=round(commit[int(len(commit) * 0.95)], 4),
        hop_ms=round(hop, 4),
        load=processes.load(),
    )


def main() -> None:
    if sys.argv[1] == "answer":
        asyncio.run(answer(Path(sys.argv[2]), Path(sys.argv[3])))
        return
    with tempfile.TemporaryDirectory(dir=sys.argv[1], prefix="calibrate-") as directory:
        print(json.dumps(asdict(calibrate(Path(directory), int(sys.argv[2])))), flush=True)


if __name__ == "__main__":
    main()
