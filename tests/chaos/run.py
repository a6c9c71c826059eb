"""`make chaos KILLS=10000`: the whole matrix in every arrangement, random kills, and a report of what became of it.

Writes build/chaos/report.md and report.json; ends with 1 where anything was lost, doubled, asked twice, not
reached or too late.
"""

import argparse
import asyncio
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from chaos.matrix import MODES, Campaign, Result
from chaos.moving import Moving, measured
from chaos.points import FOUR, MEMORY, ONE, TWO, cases
from chaos.power import cut_everywhere
from support.cluster import PRODUCTION, Forge, forge

BATCH = 250
STANDBY, RESTART = 0.5, 1.0
"""Limits of the time from a kill to moving again, in seconds, at p99."""
SHARES = ((TWO, 0.5), (ONE, 0.25), (FOUR, 0.25))
SETTLE_SECONDS = 120.0
COLUMNS = (
    "kills",
    "points missed",
    "turns",
    "lost",
    "doubled",
    "asked again",
    "unknown, entered",
    "unknown, between",
    "repeated starts",
    "seconds",
)


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    kills: int
    seed: int
    hits: int
    rounds: int
    cuts: int
    points: bool
    mode: str


async def run(plan: Plan, folder: Path) -> int:
    results: list[Result] = []
    moving: list[Moving] = []
    with forge() as processes, tempfile.TemporaryDirectory(dir=folder) as place:
        root = Path(place)
        if plan.points:
            for arrangement in (TWO, ONE, FOUR, MEMORY):
                results += await _points(processes, root, arrangement, plan)
        for arrangement, share in SHARES:
            results += await _random(processes, root, arrangement, int(plan.kills * share), plan)
        for role in ("brain", "hands"):
            for standby in (True, False):
                place_of = _fresh(root)
                moving.append(
                    await measured(
                        processes,
                        place_of,
                        role,
                        standby=standby,
                        rounds=plan.rounds,
                        settings=PRODUCTION,
                    )
                )
        power = await cut_everywhere(_fresh(root), cuts=plan.cuts, seed=plan.seed)
    report = _report(plan, results, moving, dataclasses.asdict(power))
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    text = _markdown(report)
    (folder / "report.md").write_text(text)
    print(text)
    late = [each for each in moving if each.p99 > (STANDBY if each.standby else RESTART)]
    return 1 if report["violations"] or report["missed"] or power.lost or late else 0


async def _points(forge: Forge, root: Path, arrangement: str, plan: Plan) -> list[Result]:
    found: list[Result] = []
    for hit in range(1, plan.hits + 1):
        place = _fresh(root)
        async with Campaign.open(
            forge, place, arrangement, seed=plan.seed + hit, environment=MODES[plan.mode]
        ) as campaign:
            for case in cases(arrangement):
                await campaign.kill_at(dataclasses.replace(case, hit=hit))
            await campaign.finish(SETTLE_SECONDS)
        found.append(_told(campaign, f"every point, hit {hit}", place))
    return found


async def _random(
    forge: Forge, root: Path, arrangement: str, kills: int, plan: Plan
) -> list[Result]:
    found: list[Result] = []
    for first in range(0, kills, BATCH):
        place = _fresh(root)
        seed = plan.seed + first
        async with Campaign.open(
            forge, place, arrangement, seed=seed, environment=MODES[plan.mode]
        ) as campaign:
            for _ in range(min(BATCH, kills - first)):
                await campaign.kill_at_random()
            await campaign.finish(SETTLE_SECONDS)
        found.append(_told(campaign, f"at random, seed {seed}", place))
    return found


def _told(campaign: Campaign, what: str, place: Path) -> Result:
    result = campaign.result
    result.name = what
    bad = result.violations
    print(
        f"{result.arrangement}, {what}: {len(result.kills)} kills, {len(result.missed)} missed, "
        f"{len(bad)} violations, {result.seconds:.0f} s",
        flush=True,
    )
    if bad:
        print("\n".join(bad), file=sys.stderr, flush=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
    return result


def _fresh(root: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=root))


def _report(
    plan: Plan, results: Sequence[Result], moving: Sequence[Moving], power: dict[str, Any]
) -> dict[str, Any]:
    return {
        "made_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "plan": dataclasses.asdict(plan),
        "rows": [_row(result) for result in results],
        "violations": [each for result in results for each in result.violations],
        "missed": sorted({each for result in results for each in result.missed}),
        "moving": [
            {
                "role": each.role,
                "standby": each.standby,
                "rounds": len(each.seconds),
                "p50": round(each.p50, 3),
                "p99": round(each.p99, 3),
            }
            for each in moving
        ],
        "power": power,
    }


def _row(result: Result) -> dict[str, Any]:
    audits = result.audits

    def many(name: str) -> int:
        return sum(len(getattr(audit, name)) for audit in audits)

    return {
        "arrangement": result.arrangement,
        "what": result.name,
        "kills": len(result.kills),
        "points missed": len(result.missed),
        "turns": sum(audit.turns for audit in audits),
        "lost": many("lost") + many("forgotten"),
        "doubled": many("doubled"),
        "asked again": many("asked_again"),
        "unknown, entered": sum(audit.unknown_entered for audit in audits),
        "unknown, between": sum(audit.unknown_between for audit in audits),
        "repeated starts": sum(audit.repeated_starts for audit in audits),
        "seconds": round(result.seconds, 1),
    }


def _markdown(report: dict[str, Any]) -> str:
    rows: list[dict[str, Any]] = report["rows"]
    total = {name: round(sum(row[name] for row in rows), 1) for name in COLUMNS}
    lines = [
        f"# Chaos report of {report['made_at']}",
        "",
        f"{total['kills']} kills with SIGKILL ({report['plan']['mode']});"
        f" {len(report['violations'])} violations.",
        "",
        "| arrangement | kills at | " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    for row in [*rows, {"arrangement": "all", "what": "", **total}]:
        values = " | ".join(str(row[name]) for name in COLUMNS)
        lines.append(f"| {row['arrangement']} | {row['what']} | {values} |")
    lines += [
        "",
        "*unknown, entered*: the tool had been entered. *unknown, between*: killed between the commit of",
        "STARTED and the entry. *repeated starts*: of tools whose binding allows it.",
        "",
        "| kill to moving | beside | rounds | p50 s | p99 s |",
        "|---|---|---|---|---|",
    ]
    for each in report["moving"]:
        beside = "a standby host" if each["standby"] else "a restart"
        lines.append(
            f"| {each['role']} | {beside} | {each['rounds']} | {each['p50']} | {each['p99']} |"
        )
    power = report["power"]
    lines += [
        "",
        f"Power cut at {power['cuts']} points: {power['acknowledged']} acknowledgements looked up,"
        f" {len(power['lost'])} lost.",
    ]
    if report["missed"]:
        lines += ["", "Points not reached: " + ", ".join(report["missed"])]
    if report["violations"]:
        lines += ["", "## Violations", "", *(f"- {each}" for each in report["violations"])]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="kills at random times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--hits", type=int, default=1, help="kill at the first N hits of each point"
    )
    parser.add_argument("--rounds", type=int, default=20, help="of kill to moving")
    parser.add_argument("--cuts", type=int, default=200, help="power cuts")
    parser.add_argument("--no-points", action="store_true", help="only random kills")
    parser.add_argument("--mode", choices=list(MODES), default="normal")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        kills=given.kills,
        seed=given.seed,
        hits=given.hits,
        rounds=given.rounds,
        cuts=given.cuts,
        points=not given.no_points,
        mode=given.mode,
    )
    return asyncio.run(run(plan, given.folder.absolute()))


if __name__ == "__main__":
    sys.exit(main())
