"""Starts peers in fresh directories, round after round, and keeps what they printed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import order, processes, shim, venvs
from bench.growth import GrowthPlan
from bench.instrument import Instrument, Launch
from bench.plan import Phases
from bench.servers import Servers
from support.services import Unavailable

TESTS = Path(__file__).resolve().parents[1]
PEER_LIMIT_S = 900.0
CALIBRATION_COUNT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A peer's module and the environment it runs in; None is the harness's own."""

    module: str
    environment: str | None
    servers: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])


def _nerve(broker: str = "rabbitmq", *, brains: int = 1, hands: int = 1) -> Contender:
    return Contender(
        module=f"nerve_{broker}",
        environment=None,
        servers=["postgres", broker],
        variables={"BENCH_BRAIN_COUNT": str(brains), "BENCH_HANDS_COUNT": str(hands)},
    )


CONTENDERS: Mapping[str, Contender] = {
    "langgraph": Contender(module="langgraph", environment="langgraph"),
    "dbos": Contender(module="dbos", environment="dbos"),
    "nerve-1p": Contender(module="nerve_1p", environment=None),
    "nerve-2p": Contender(module="nerve_2p", environment=None),
    "absurd": Contender(module="absurd", environment="absurd", servers=["postgres"]),
    "dbos-postgres": Contender(module="dbos", environment="dbos", servers=["postgres"]),
    "taskiq": Contender(module="taskiq", environment="taskiq", servers=["rabbitmq", "redis"]),
    "nerve-rabbitmq": _nerve(),
    "nerve-rocketmq": _nerve("rocketmq"),
}
SCALED: Mapping[str, Contender] = {
    "2 Brains": _nerve(brains=2),
    "2 Hands": _nerve(hands=2),
    "4 Brains": _nerve(brains=4),
    "4 Hands": _nerve(hands=4),
}
"""More replicas on the same ledgers; each is compared with one of each, right before it."""

ALL: Mapping[str, Contender] = {**CONTENDERS, **SCALED}


@dataclass(slots=True, kw_only=True)
class Results:
    """Rows by peer, one per round; what could not be measured is said with its reason."""

    calibrations: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    rounds: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    slow: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    orders: dict[str, order.Verdict] = field(default_factory=dict[str, order.Verdict])
    flushes: dict[str, float] = field(default_factory=dict[str, float])
    growth: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    skipped: dict[str, str] = field(default_factory=dict[str, str])


class PeerFailed(Exception):
    """A peer ended without a row; the text is the end of what it wrote."""


class Runner:
    """Runs contenders below one build directory."""

    def __init__(self, build: Path, instrument: Instrument, phases: Phases) -> None:
        self._build = build
        self._instrument = instrument
        self._phases = phases
        self._pythons = dict[str, Path]()
        self._servers = Servers()
        self.results = Results()

    def close(self) -> None:
        self._servers.drop()

    def ready(self, names: list[str]) -> list[str]:
        """Makes the environments; a contender that is not there yet is skipped by name."""
        present = list[str]()
        for name in names:
            contender = ALL[name]
            if find_spec(f"bench.peers.{contender.module}_peer") is None:
                self.results.skipped[name] = f"tests/bench/peers/{contender.module}_peer.py missing"
                continue
            try:
                self._servers.require(contender.servers)
            except Unavailable as missing:
                self.results.skipped[name] = str(missing)
                continue
            self._pythons[name] = venvs.interpreter(contender.environment, self._build / "venvs")
            present.append(name)
        return present

    def calibrate(self) -> None:
        command = [sys.executable, "-m", "bench.calibrate", str(self._build)]
        row = self._row([*command, str(CALIBRATION_COUNT)], {}, self._build / "calibrate.log")
        self.results.calibrations.append(row)
        print(f"  calibration {json.dumps(row)}", flush=True)

    def round(self, names: list[str]) -> None:
        for name in names:
            self._attempt(name, self.results.rounds, "normal")

    def scaled_round(self, names: list[str]) -> None:
        for name in names:
            self._attempt(name, self.results.rounds, "scaled")

    def slow_round(self, names: list[str]) -> None:
        for name in names:
            self._attempt(name, self.results.slow, "slow")

    def order_of(self, name: str) -> None:
        """Logs every write and flush of a short run and judges the acknowledgements by it."""
        directory = self._fresh(name)
        phases = replace(self._phases, directory=directory).ordered()
        launch = self._instrument.logging(directory)
        if launch is None or name in self.results.skipped:
            return
        row = self._drive(name, phases, launch)
        log = directory / "flushes.log"
        if self._instrument.shim is None:
            turns = row["effects"]["turns"]
            self.results.flushes[name] = round(len(log.read_text().splitlines()) / turns, 2)
            return
        assert phases.acknowledgements is not None
        acknowledged = json.loads(phases.acknowledgements.read_text())
        self.results.orders[name] = order.judge(shim.events(log), acknowledged)
        shutil.rmtree(directory)

    def growth_of(self, name: str, plan: GrowthPlan) -> None:
        """Long Threads and many waiting Turns, on a peer that knows both."""
        if name in self.results.skipped:
            return
        directory = self._fresh(name)
        plan = replace(plan, directory=directory)
        command = [str(self._pythons[name]), "-m", "bench.growth", ALL[name].module]
        launch = self._instrument.counting(directory)
        variables = {**launch.environment, "BENCH_EFFECT_FILE": str(plan.effect_file)}
        log = directory / "peer.log"
        self.results.growth[name] = self._row([*command, plan.dump()], variables, log)
        shutil.rmtree(directory)

    def _attempt(self, name: str, into: dict[str, list[dict[str, Any]]], kind: str) -> None:
        if name in self.results.skipped:
            return
        directory = self._fresh(name)
        phases = replace(self._phases, directory=directory)
        launch: Launch | None = self._launch(name, directory)
        if ALL[name].servers:
            phases = phases.with_servers()
        if kind == "slow":
            phases, launch = phases.slowed(), self._instrument.slowing(directory)
        if kind == "scaled":
            phases = phases.scaled()
        if launch is None:
            return
        try:
            row = self._drive(name, phases, launch)
        except PeerFailed as failure:
            self.results.skipped[name] = str(failure)
            print(f"  {name} ({kind}) FAILED: {failure}", flush=True)
            return
        into.setdefault(name, []).append(row)
        shutil.rmtree(directory)
        idle, busy = row.get("idle", {}).get("p50_ms", "-"), row["at_64"]
        costs = f"{busy['turns_s']}/s at 64, {busy['cpu_ms_turn_all']} ms CPU a turn"
        print(f"  {name} ({kind}): p50 {idle} ms, {costs}", flush=True)

    def _launch(self, name: str, directory: Path) -> Launch:
        """Flushes of a server happen where no shim of ours is."""
        return Launch() if ALL[name].servers else self._instrument.counting(directory)

    def _fresh(self, name: str) -> Path:
        directory = self._build / "state" / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory

    def _drive(self, name: str, phases: Phases, launch: Launch) -> dict[str, Any]:
        contender = ALL[name]
        module = contender.module
        python = str(self._pythons[name])
        command = [*launch.prefix, python, "-m", "bench.drive", module, phases.dump()]
        variables = {
            **launch.environment,
            **contender.variables,
            **self._servers.fresh(contender.servers),
            "BENCH_EFFECT_FILE": str(phases.effect_file),
        }
        return self._row(command, variables, phases.directory / "peer.log")

    def _row(self, command: list[str], variables: Mapping[str, str], log: Path) -> dict[str, Any]:
        """The JSON line that the command prints; its whole process group ends with it."""
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, **variables}
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )
            try:
                printed, _ = process.communicate(timeout=PEER_LIMIT_S)
            except subprocess.TimeoutExpired:
                printed = ""
            finally:
                end_group(process)
        rows = [line for line in printed.splitlines() if line.startswith("{")]
        if not rows:
            raise PeerFailed(" | ".join(log.read_text(errors="replace").split("\n")[-4:]).strip())
        row: dict[str, Any] = json.loads(rows[-1])
        return row | {"load_after": processes.load()}


def end_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
