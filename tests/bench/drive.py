"""Drives one peer inside its own virtual environment and prints one JSON line of measurements.

Started by the harness as `python -m bench.drive`; see `plan.Phases` for what is measured.
"""

import asyncio
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from bench import database, processes, shim
from bench.peer import Peer
from bench.plan import Phases
from bench.servers_env import DATABASE, server_pids

TURN_LIMIT_S = 180.0
GRACE_S = 5.0


def quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {
        "p50_ms": round(statistics.median(ordered) * 1e3, 3),
        "p95_ms": round(p95 * 1e3, 3),
        "max_ms": round(ordered[-1] * 1e3, 3),
    }


class Acknowledgements:
    """When the driver was told of what, kept only for the check of the order of flushes."""

    def __init__(self) -> None:
        self.at: dict[str, int] = {}

    def __call__(self, mark: str) -> None:
        self.at[mark] = time.monotonic_ns()


class Roles:
    """The peer's processes beside this one; they end with this process."""

    def __init__(self, peer: Peer) -> None:
        self.servers = server_pids(os.environ)
        self._commands = dict(peer.procs())
        self._live = {role: self._start(role) for role in self._commands}

    def _start(self, role: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._commands[role], stdout=sys.stderr)

    def pids(self) -> dict[str, int]:
        return {"driver": os.getpid(), **{role: p.pid for role, p in self._live.items()}}

    def usages(self) -> dict[str, processes.Usage]:
        """Of these processes, and of the servers that they use."""
        return processes.usages(self.pids()) | {
            name: processes.together(pids) for name, pids in self.servers.items()
        }

    def trees(self) -> dict[str, Sequence[int]]:
        """All processes of each role, and of the servers."""
        every = {role: [pid] for role, pid in self.pids().items()} | self.servers
        return {
            role: [m for pid in pids for m in processes.tree(pid)] for role, pids in every.items()
        }

    def pss_mib(self) -> dict[str, float]:
        pss = {role: processes.pss_mib(pid) for role, pid in self.pids().items()}
        return pss | {
            name: round(sum(map(processes.pss_mib, pids)), 1) for name, pids in self.servers.items()
        }

    def restart(self, role: str) -> None:
        stop(self._live[role])
        self._live[role] = self._start(role)

    def kill(self, role: str) -> None:
        """SIGKILL, and not started again."""
        process = self._live.pop(role)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._live.values():
            process.terminate()
        for process in self._live.values():
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Running totals at one moment; the difference of two of them is what a phase cost."""

    at: float
    machine_s: float
    roles: Mapping[str, processes.Usage]
    servers: frozenset[str]
    store: int
    counters: shim.Counters | None
    database: database.Counted | None

    def until(self, later: "Snapshot", turns: int) -> dict[str, Any]:
        # A phase in which no turn ended (a very busy machine) tells its whole cost.
        turns = max(turns, 1)
        cpu = {role: later.roles[role].cpu_s - self.roles[role].cpu_s for role in self.roles}
        written = sum(later.roles[r].written - self.roles[r].written for r in self.roles)
        own = sum(seconds for role, seconds in cpu.items() if role not in self.servers)
        wall = later.at - self.at
        others = later.machine_s - self.machine_s - sum(cpu.values())
        row: dict[str, Any] = {
            "cpu_ms_turn": {role: round(s / turns * 1e3, 3) for role, s in cpu.items()},
            "cpu_ms_turn_all": round(sum(cpu.values()) / turns * 1e3, 3),
            "cpu_ms_turn_own": round(own / turns * 1e3, 3),
            "cpu_share": round(own / wall, 4),
            "cpu_share_all": round(sum(cpu.values()) / wall, 4),
            "others_share": round(max(0.0, others) / wall / (os.cpu_count() or 1), 3),
            "written_turn": round(written / turns),
            "store_turn": round((later.store - self.store) / turns),
        }
        if self.counters and later.counters:
            for name, value in dataclasses.asdict(later.counters).items():
                row[f"{name}_turn"] = round((value - getattr(self.counters, name)) / turns, 3)
        if self.database and later.database:
            row["commits_turn"] = round(
                (later.database.transactions - self.database.transactions) / turns, 3
            )
            row["wal_turn"] = round((later.database.wal_bytes - self.database.wal_bytes) / turns)
            row["statements_turn"] = round(
                (later.database.statements - self.database.statements) / turns, 2
            )
        return row


class Driver:
    """Runs the phases of the plan against one connected peer."""

    def __init__(self, peer: Peer, roles: Roles) -> None:
        self._peer = peer
        self._roles = roles
        self.acknowledged = Acknowledgements()
        self.turns = 0

    def snapshot(self) -> Snapshot:
        return Snapshot(
            at=time.perf_counter(),
            machine_s=processes.machine_busy_s(),
            roles=self._roles.usages(),
            servers=frozenset(self._roles.servers),
            store=self._peer.store_bytes(),
            counters=shim.read_counters(os.environ),
            database=database.counted(url) if (url := os.environ.get(DATABASE)) else None,
        )

    async def one(self) -> float:
        turn = uuid.uuid4().hex[: shim.MARK_ID]
        started = time.perf_counter()
        answer = await asyncio.wait_for(self._peer.turn(turn, self.acknowledged), TURN_LIMIT_S)
        ended = time.perf_counter()
        self.acknowledged(f"final {turn}")
        if answer != f"final {turn} 200":
            raise ValueError(f"wrong answer to turn {turn}: {answer!r}")
        self.turns += 1
        return ended - started

    async def outstanding(self, count: int, seconds: float) -> dict[str, Any]:
        """Keeps `count` turns in flight for `seconds`, then lets the last ones finish."""
        took = list[float]()
        before = self.snapshot()

        began = time.perf_counter()

        async def sender() -> None:
            took.append(await self.one())
            while time.perf_counter() - began < seconds:
                took.append(await self.one())

        await asyncio.gather(*(sender() for _ in range(count)))
        rate = round(len(took) / (time.perf_counter() - began), 1)
        after = self.snapshot()
        costs = before.until(after, len(took))
        return {"turns": len(took), "turns_s": rate, **quantiles(took), **costs}

    def memory(self) -> dict[str, float]:
        return self._roles.pss_mib()

    async def quiet(self, seconds: float) -> dict[str, Any]:
        """What the processes burn while nobody asks for anything.

        Only the clocks of processes known before are read: a whole snapshot takes this driver longer than
        all else that it does in these seconds.
        """
        pids = self._roles.trees()
        before = {role: processes.own_seconds(each) for role, each in pids.items()}
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        wall = time.perf_counter() - began
        cpu = {role: processes.own_seconds(pids[role]) - used for role, used in before.items()}
        own = sum(used for role, used in cpu.items() if role not in self._roles.servers)
        return {
            "cpu_share": round(own / wall, 4),
            "cpu_share_all": round(sum(cpu.values()) / wall, 4),
            "cpu_ms": {role: round(used * 1e3, 3) for role, used in cpu.items()},
        }

    async def run(self, phases: Phases) -> dict[str, Any]:
        row = dict[str, Any]()
        await self.outstanding(1, phases.warm_s)
        if phases.idle_s:
            row["idle"] = await self.outstanding(1, phases.idle_s)
        for count in phases.outstanding:
            row[f"at_{count}"] = await self.outstanding(count, phases.rate_s)
        row["pss_mib"] = self.memory()
        if phases.statements_s and (url := os.environ.get(DATABASE)):
            database.count_statements(url, on=True)
            row["counted"] = await self.outstanding(phases.outstanding[0], phases.statements_s)
            database.count_statements(url, on=False)
        if phases.quiet_s:
            await asyncio.sleep(phases.settle_s)
            row["quiet"] = await self.quiet(phases.quiet_s)
        return row


def effects(path: Path) -> dict[str, int]:
    lines = path.read_text().splitlines() if path.exists() else []
    turns = {line.split()[0] for line in lines}
    return {"lines": len(lines), "doubled": len(lines) - len(turns)}


async def measure(peer: Peer, phases: Phases) -> dict[str, Any]:
    peer.prepare()
    roles = Roles(peer)
    try:
        await peer.connect()
        driver = Driver(peer, roles)
        row = await driver.run(phases)
        if phases.acknowledgements:
            phases.acknowledgements.write_text(json.dumps(driver.acknowledged.at))
        row["settings"] = dict(peer.settings())
        row["effects"] = {**effects(phases.effect_file), "turns": driver.turns}
        await peer.close()
    finally:
        roles.stop()
    return row


def end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)


def run(job: Callable[[], Coroutine[Any, Any, dict[str, Any]]]) -> None:
    """Prints the job's row and leaves at once: some peers keep threads that never end."""
    signal.signal(signal.SIGTERM, end)
    row = asyncio.run(job())
    print(json.dumps(row), flush=True)
    os._exit(0)


if __name__ == "__main__":
    plan = Phases.parse(sys.argv[2])
    module = import_module(f"bench.peers.{sys.argv[1]}_peer")
    run(lambda: measure(module.Peer(plan.directory), plan))
