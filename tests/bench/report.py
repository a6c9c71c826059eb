"""The tables: figures of each peer, ratios within the run, bars; as Markdown and as JSON."""

import dataclasses
import json
import os
import platform
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import bars
from bench.bars import Bar
from bench.runner import ALL, Results

ROWS: Sequence[tuple[str, str, float]] = (
    ("one at a time, p50 ms", "idle.p50_ms", 1),
    ("one at a time, p95 ms", "idle.p95_ms", 1),
    ("turns/s, one at a time", "idle.turns_s", 1),
    ("turns/s, 64 outstanding", "at_64.turns_s", 1),
    ("turns/s, 256 outstanding", "at_256.turns_s", 1),
    ("p95 ms at 64", "at_64.p95_ms", 1),
    ("CPU ms a turn, one at a time", "idle.cpu_ms_turn_all", 1),
    ("CPU ms a turn at 64", "at_64.cpu_ms_turn_all", 1),
    ("of which driver", "at_64.cpu_ms_turn.driver", 1),
    ("of which Brain", "at_64.cpu_ms_turn.brain", 1),
    ("of which Hands", "at_64.cpu_ms_turn.hands", 1),
    ("of which PostgreSQL", "at_64.cpu_ms_turn.postgres", 1),
    ("of which RabbitMQ", "at_64.cpu_ms_turn.rabbitmq", 1),
    ("of which RocketMQ", "at_64.cpu_ms_turn.rocketmq", 1),
    ("of which Redis", "at_64.cpu_ms_turn.redis", 1),
    ("CPU ms a turn at 256", "at_256.cpu_ms_turn_all", 1),
    ("commits a turn, one at a time", "idle.commits_turn", 1),
    ("commits a turn at 64", "at_64.commits_turn", 1),
    ("commits a turn at 256", "at_256.commits_turn", 1),
    ("flushes a turn, one at a time", "idle.flushes_turn", 1),
    ("flushes a turn at 64", "at_64.flushes_turn", 1),
    ("statements a turn at 64", "counted.statements_turn", 1),
    ("KiB of WAL a turn, one at a time", "idle.wal_turn", 1 / 1024),
    ("KiB of WAL a turn at 64", "at_64.wal_turn", 1 / 1024),
    ("doorbells a turn, one at a time", "idle.datagrams_turn", 1),
    ("doorbells a turn at 64", "at_64.datagrams_turn", 1),
    ("KiB written a turn, one at a time", "idle.written_turn", 1 / 1024),
    ("KiB written a turn at 64", "at_64.written_turn", 1 / 1024),
    ("KiB of store growth a turn at 64", "at_64.store_turn", 1 / 1024),
    ("resident driver, MiB (Pss under load)", "pss_mib.driver", 1),
    ("resident Brain, MiB", "pss_mib.brain", 1),
    ("resident Hands, MiB", "pss_mib.hands", 1),
    ("resident servers, MiB: PostgreSQL", "pss_mib.postgres", 1),
    ("RabbitMQ", "pss_mib.rabbitmq", 1),
    ("RocketMQ", "pss_mib.rocketmq", 1),
    ("idle CPU of all processes, %", "quiet.cpu_share", 100),
    ("idle CPU with the servers, %", "quiet.cpu_share_all", 100),
    ("others' share of the machine at 64", "at_64.others_share", 1),
)
SLOW_ROWS: Sequence[tuple[str, str, float]] = (
    ("one at a time, p50 ms", "idle.p50_ms", 1),
    ("turns/s, 64 outstanding", "at_64.turns_s", 1),
    ("flushes a turn at 64", "at_64.flushes_turn", 1),
)
RATIOS: Sequence[tuple[str, str]] = (
    ("rate, one at a time", "idle.turns_s"),
    ("rate at 64", "at_64.turns_s"),
    ("rate at 256", "at_256.turns_s"),
    ("p50 one at a time", "idle.p50_ms"),
    ("CPU a turn at 64", "at_64.cpu_ms_turn_all"),
    ("CPU a turn, one at a time", "idle.cpu_ms_turn_all"),
    ("bytes written at 64", "at_64.written_turn"),
)


def shown(found: float | None) -> str:
    if found is None:
        return "-"
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.3g}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(rows: list[dict[str, Any]], path: str, scale: float) -> str:
    """Median, with least and most where there were several rounds."""
    known = [found * scale for row in rows if (found := bars.dig(row, path)) is not None]
    middle = bars.median(iter(known))
    if len(known) < 2:
        return shown(middle)
    return f"{shown(middle)} ({shown(min(known))}-{shown(max(known))})"


def figures(
    by_peer: dict[str, list[dict[str, Any]]], rows: Sequence[tuple[str, str, float]]
) -> str:
    names = [name for name in ALL if name in by_peer]
    body = [
        [label, *(spread(by_peer[name], path, scale) for name in names)]
        for label, path, scale in rows
        if any(bars.dig(row, path) is not None for name in names for row in by_peer[name])
    ]
    return table(["", *names], body)


def ratios(results: Results) -> str:
    pairs = [
        (mine, other)
        for mine in results.rounds
        for other in results.rounds
        if mine.startswith("nerve") and not other.startswith("nerve")
    ]
    if not pairs:
        return "No ratios: they need nerve and a peer in one run."
    heads = ["", *(f"{mine} / {other}" for mine, other in pairs)]
    body = [
        [label, *(shown(bars.ratio(results, mine, other, path)) for mine, other in pairs)]
        for label, path in RATIOS
    ]
    return table(heads, body)


GROWTH_ROWS: Sequence[tuple[str, str, float]] = (
    ("Turns in one Thread", "thread.turns", 1),
    ("early window, p95 ms", "thread.first.p95_ms", 1),
    ("late window, p95 ms", "thread.last.p95_ms", 1),
    ("late over early, p50", "thread.ratio.p50_ms", 1),
    ("late over early, p95", "thread.ratio.p95_ms", 1),
    ("late over early, CPU", "thread.ratio.cpu_ms_turn_all", 1),
    ("late over early, bytes written", "thread.ratio.written_turn", 1),
    ("late over early, store growth", "thread.ratio.store_turn", 1),
    ("restart of the Brain to a new Thread's answer, ms", "thread.cold_ms.new_ms", 1),
    ("the same to the long Thread's answer, ms", "thread.cold_ms.long_ms", 1),
    ("waiting Turns", "waiting.turns", 1),
    ("accepted a second", "waiting.parked_s", 1),
    ("p50 ms of a new Turn without them", "waiting.without.p50_ms", 1),
    ("p50 ms beside them", "waiting.beside.p50_ms", 1),
    ("MiB more in Brain and Hands", "waiting.more_mib", 1),
    ("idle CPU beside them, %", "waiting.quiet.cpu_share", 100),
)


def growth(results: Results) -> str:
    if not results.growth:
        return ""
    by_peer = {name: [row] for name, row in results.growth.items()}
    return "## Growth\n\n" + figures(by_peer, GROWTH_ROWS)


def bar_table(judged: Sequence[Bar]) -> str:
    body = [
        [
            bar.name,
            shown(bar.value),
            ("at least " if bar.at_least else "at most ") + shown(bar.must),
            shown(bar.aim),
            bar.state,
        ]
        for bar in judged
    ]
    return table(["bar", "found", "must", "aim", ""], body)


def slowed(results: Results) -> str:
    head = "## Every flush 2 ms slower\n\n"
    return head + figures(results.slow, SLOW_ROWS) if results.slow else ""


def orders(results: Results) -> str:
    """Only where the flushes are those of our own processes."""
    if not (results.orders or results.flushes or results.slow):
        return ""
    head = "## Acknowledgements against flushes\n\n"
    heads = ["", "acknowledgements", "before their flush", "not seen", "commits", "unflushed"]
    body = [
        [name, str(v.checked), str(len(v.early)), str(v.unseen), str(v.commits), str(v.bare)]
        for name, v in results.orders.items()
    ]
    if body:
        return head + table(heads, body)
    counted = "; ".join(f"{name} {count} a turn" for name, count in results.flushes.items())
    return f"{head}Not checked (needs the shim). Flushes by strace: {counted or 'not counted'}."


def settings(results: Results) -> str:
    lines = list[str]()
    for name, rows in results.rounds.items():
        said = "; ".join(f"{key}: {text}" for key, text in rows[-1]["settings"].items())
        lines.append(f"- **{name}**: {said}")
    lines += [f"- **{name}** not measured: {why}" for name, why in results.skipped.items()]
    return "\n".join(lines)


def machine() -> str:
    python, lite = platform.python_version(), sqlite3.sqlite_version
    return f"{os.cpu_count()} CPUs, Python {python}, SQLite {lite}, {platform.system()}"


def calibration(results: Results) -> str:
    heads = list(results.calibrations[0]) if results.calibrations else []
    body = [[shown(row[head]) for head in heads] for row in results.calibrations]
    return table(["round", *heads], [[str(k + 1), *row] for k, row in enumerate(body)])


def markdown(results: Results, judged: Sequence[Bar], instrument: str) -> str:
    rounds = len(results.calibrations)
    parts = [
        "# Benchmark",
        f"{machine()}. Rounds: {rounds}, peers alternated within each. Instrument: {instrument}.",
        "Median (least-most) of the rounds; a ratio is the median of the rounds' own ratios.",
        "## Bars\n\n" + bar_table(judged),
        "## Ratios\n\n" + ratios(results),
        "## Figures\n\n" + figures(results.rounds, ROWS),
        slowed(results),
        orders(results),
        growth(results),
        "## Settings\n\n" + settings(results),
        "## Calibration\n\n" + calibration(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(build: Path, text: str, results: Results, judged: Sequence[Bar]) -> None:
    whole = {
        "machine": machine(),
        "results": dataclasses.asdict(results),
        "bars": [{**dataclasses.asdict(bar), "state": bar.state} for bar in judged],
    }
    (build / "report.md").write_text(text)
    (build / "report.json").write_text(json.dumps(whole, indent=1))
