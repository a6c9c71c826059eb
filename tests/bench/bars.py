"""The bars that the project sets itself, each a ratio within one run where that is possible."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.runner import Results

NERVE = "nerve-2p"
PEER = "langgraph"
LEAST_HOPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`value` must not pass `must`; `aim` is where it should be. None: not measured."""

    name: str
    value: float | None
    must: float
    aim: float | None = None
    at_least: bool = False

    @property
    def state(self) -> str:
        if self.value is None:
            return "not measured"
        if not self._within(self.must):
            return "MISSED"
        return "met" if self.aim is None or self._within(self.aim) else "met, aim not reached"

    def _within(self, limit: float) -> bool:
        assert self.value is not None
        return self.value >= limit if self.at_least else self.value <= limit

    @property
    def failed(self) -> bool:
        return self.value is not None and not self._within(self.must)


def dig(row: dict[str, Any], path: str) -> float | None:
    value: Any = row
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]  # pyright: ignore[reportUnknownVariableType]
    return float(value)  # pyright: ignore[reportUnknownArgumentType]


def median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def value(results: Results, name: str, path: str) -> float | None:
    return median(dig(row, path) for row in results.rounds.get(name, []))


def ratio(results: Results, name: str, other: str, path: str) -> float | None:
    """Median of the ratios taken within each round, since the machine's speed drifts."""
    pairs = zip(results.rounds.get(name, []), results.rounds.get(other, []), strict=False)

    def each() -> Iterator[float | None]:
        for mine, its in pairs:
            a, b = dig(mine, path), dig(its, path)
            yield None if a is None or not b else a / b

    return median(each())


def floor_ms(row: dict[str, Any], calibration: dict[str, float], least_hops: int) -> float | None:
    """Bare commits times counted commits plus bare hops times counted hops of one idle turn.

    Rings beyond the hops that the turn cannot do without are not part of a floor.
    """
    commits, rings = dig(row, "idle.commits_turn"), dig(row, "idle.datagrams_turn")
    if commits is None or rings is None:
        return None
    return commits * calibration["commit_ms"] + min(rings, least_hops) * calibration["hop_ms"]


def over_floor(results: Results, name: str, least_hops: int) -> float | None:
    pairs = zip(results.rounds.get(name, []), results.calibrations, strict=False)

    def each() -> Iterator[float | None]:
        for row, calibration in pairs:
            floor, p50 = floor_ms(row, calibration, least_hops), dig(row, "idle.p50_ms")
            yield None if not floor or p50 is None else p50 / floor

    return median(each())


def order_broken(results: Results, name: str) -> float | None:
    verdict = results.orders.get(name)
    return None if verdict is None else float(not verdict.holds)


def share(part: float | None) -> float | None:
    return None if part is None else part * 100


def doubled(results: Results, name: str) -> float | None:
    rows = results.rounds.get(name, [])
    gaps = [abs(row["effects"]["lines"] - row["effects"]["turns"]) for row in rows]
    return float(max(gaps)) if gaps else None


def bars(results: Results) -> list[Bar]:
    def over(path: str) -> float | None:
        return ratio(results, NERVE, PEER, path)

    def own(path: str) -> float | None:
        return value(results, NERVE, path)

    def bar(name: str, found: float | None, must: float, aim: float | None = None) -> Bar:
        return Bar(name=f"{NERVE} {name}", value=found, must=must, aim=aim)

    rate = "rate at 64 outstanding, times LangGraph's"
    return [
        Bar(name=f"{NERVE} {rate}", value=over("at_64.turns_s"), must=8, aim=16, at_least=True),
        bar("CPU a turn at 64, share of LangGraph's", over("at_64.cpu_ms_turn_all"), 1 / 6, 1 / 12),
        bar("commits a turn at 64", own("at_64.commits_turn"), 0.5, 0.2),
        bar("p50 one at a time, share of LangGraph's", over("idle.p50_ms"), 0.9),
        bar("p50 one at a time, times the floor", over_floor(results, NERVE, LEAST_HOPS), 4, 2.5),
        bar("idle CPU of all processes, %", share(own("quiet.cpu_share")), 1),
        bar("Brain resident under load, MiB", own("pss_mib.brain"), 100),
        bar("Hands resident under load, MiB", own("pss_mib.hands"), 80),
        bar("effects missing or doubled", doubled(results, NERVE), 0),
        bar("acknowledgement before its flush", order_broken(results, NERVE), 0),
        Bar(
            name="nerve-1p acknowledgement before its flush",
            value=order_broken(results, "nerve-1p"),
            must=0,
        ),
    ]


def growth_bars(results: Results, name: str) -> list[Bar]:
    row = results.growth.get(name, {})
    late, waiting = f"{name} late Turn of a Thread over an early one", f"{name} with waiting Turns"
    return [
        Bar(name=f"{late}, p95", value=dig(row, "thread.ratio.p95_ms"), must=1.2),
        Bar(name=f"{late}, bytes written", value=dig(row, "thread.ratio.written_turn"), must=1.2),
        Bar(name=f"{waiting}: MiB more", value=dig(row, "waiting.more_mib"), must=20),
        Bar(
            name=f"{waiting}: idle CPU, %",
            value=share(dig(row, "waiting.quiet.cpu_share")),
            must=1,
        ),
        Bar(name=f"{waiting}: p50 of a new Turn, times", value=dig(row, "waiting.ratio"), must=1.2),
    ]
