"""The command: chooses peers and rounds, runs them, prints the report, fails on a missed bar."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench import bars, imports, report
from bench.bars import Bar
from bench.growth import GrowthPlan
from bench.instrument import Instrument
from bench.plan import Phases
from bench.runner import CONTENDERS, SCALED, PeerFailed, Runner
from bench.server_bars import RABBIT, scale_bars, server_bars

BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"
MISSED = 1


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it work")
    parser.add_argument("--rounds", type=int, help="alternated rounds (3; 1 with --quick)")
    parser.add_argument("--servers", action="store_true", help="peers and nerve on real servers")
    parser.add_argument("--scale", action="store_true", help="two and four replicas of each role")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="these peers alone")
    parser.add_argument("--outstanding", nargs="+", type=int, help="(64 256; the bars need 64)")
    parser.add_argument("--no-slow", action="store_true", help="without the slow flush column")
    parser.add_argument("--no-growth", action="store_true", help="without long Threads and waits")
    return parser.parse_args(argv)


def startup_bars(found: dict[str, float | None]) -> list[Bar]:
    bare, brain, aid = (found[name] for name in imports.COMMANDS)
    over = None if brain is None or bare is None else round(brain - bare, 3)
    return [
        Bar(name="import nerve.brain, CPU s over bare Python", value=over, must=0.3),
        Bar(name="nerve --help, CPU s", value=aid, must=0.4),
    ]


def run(runner: Runner, names: list[str], rounds: int, slow: bool) -> None:
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        runner.calibrate()
        runner.round(names)
        if slow:
            runner.slow_round(names)
    for name in names:
        try:
            runner.order_of(name)
        except PeerFailed as failure:
            print(f"  {name} (order of flushes) FAILED: {failure}", flush=True)


def grow(runner: Runner, names: list[str], *, quick: bool) -> None:
    """Only the host that has a Brain process of its own: its memory is nobody else's."""
    plan = GrowthPlan(directory=BUILD)
    if bars.NERVE not in names:
        return
    try:
        runner.growth_of(bars.NERVE, plan.quick() if quick else plan)
    except PeerFailed as failure:
        print(f"  {bars.NERVE} (growth) FAILED: {failure}", flush=True)


def judge(runner: Runner) -> list[Bar]:
    results = runner.results
    grown = bars.growth_bars(results, bars.NERVE)
    return bars.bars(results) + grown + startup_bars(imports.measure())


def main(argv: Sequence[str]) -> int:
    asked = arguments(argv)
    BUILD.mkdir(parents=True, exist_ok=True)
    phases = Phases(directory=BUILD)
    if asked.outstanding:
        phases = replace(phases, outstanding=tuple(asked.outstanding))
    instrument = Instrument.find(BUILD)
    runner = Runner(BUILD, instrument, phases.quick() if asked.quick else phases)
    rounds = asked.rounds or (1 if asked.quick else 3)
    try:
        judged = kind(asked)(runner, asked, rounds)
    finally:
        runner.close()
    text = report.markdown(runner.results, judged, instrument.said())
    report.write(BUILD, text, runner.results, judged)
    print(text)
    return verdict(judged, partial=asked.only is not None or asked.no_growth)


def embedded(runner: Runner, asked: argparse.Namespace, rounds: int) -> list[Bar]:
    names = runner.ready(
        asked.only or [name for name, one in CONTENDERS.items() if not one.servers]
    )
    run(runner, names, rounds, not asked.no_slow)
    if not asked.no_growth:
        grow(runner, names, quick=asked.quick)
    return judge(runner)


def kind(
    asked: argparse.Namespace,
) -> Callable[[Runner, argparse.Namespace, int], list[Bar]]:
    if asked.scale:
        return scaling
    return servers if asked.servers else embedded


def scaling(runner: Runner, asked: argparse.Namespace, rounds: int) -> list[Bar]:
    names = runner.ready([RABBIT, *SCALED])
    for number in range(asked.rounds or (1 if asked.quick else 5)):
        print(f"pairs {number + 1}", flush=True)
        runner.calibrate()
        runner.scaled_round(names)
    return scale_bars(runner.results)


def servers(runner: Runner, asked: argparse.Namespace, rounds: int) -> list[Bar]:
    names = runner.ready(asked.only or [name for name, one in CONTENDERS.items() if one.servers])
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        runner.calibrate()
        runner.round(names)
    return server_bars(runner.results)


def verdict(judged: Sequence[Bar], *, partial: bool) -> int:
    """A bar that was not measured is missed, except where only some peers were asked for."""
    missed = [bar for bar in judged if bar.failed or (bar.value is None and not partial)]
    for bar in missed:
        print(f"bar not met: {bar.name}: {bar.state}")
    return MISSED if missed else 0
