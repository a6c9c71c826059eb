"""The proof: what stands in the files that only the tools and the model's server write.

Nothing here opens a ledger. Executions and keys are only names by which lines are told apart.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nerve.deploy.demo import places
from nerve.deploy.demo.scenario import ANSWERS, FIRST, SECOND

EFFECTS = (
    ("ticket", "Checkout is failing"),
    ("page", FIRST),
    ("page", SECOND),
)
READING = frozenset(("count_trouble", "search_log"))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing that must be true, and what was counted for it."""

    text: str
    holds: bool
    counted: str


def proof(root: Path, *, first_hands: int, at_once: int) -> list[Claim]:
    """Count effects, runs of tools and requests. `first_hands` is the pid of the Hands that were
    killed while some of `at_once` commands waited for a slot."""
    effects = read(root / places.EFFECTS)
    calls = read(root / places.CALLS)
    return [_once(effects), _waited(calls, first_hands, at_once), _asked(root)]


def read(path: Path) -> list[dict[str, Any]]:
    """Every line of a file, which need not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _once(effects: Sequence[dict[str, Any]]) -> Claim:
    counts = Counter((str(each["effect"]), str(each["for"])) for each in effects)
    executions = {each["execution"] for each in effects}
    return Claim(
        text="every effect happened once",
        holds=counts == Counter(EFFECTS) and len(executions) == len(effects),
        counted=", ".join(f"{effect} {whom}: {counts[effect, whom]}" for effect, whom in counts)
        or "no effect at all",
    )


def _waited(calls: Sequence[dict[str, Any]], first_hands: int, at_once: int) -> Claim:
    """Of the calls that were asked for at once, those that the killed process had not begun."""
    asked = [each for each in calls if each["tool"] in {*READING, "open_ticket"}]
    begun = {each["execution"]: each["tool"] for each in asked if each["pid"] == first_hands}
    runs = Counter(each["execution"] for each in asked if each["execution"] not in begun)
    return Claim(
        text="what waited for a slot when Hands were killed ran once, later",
        holds=len(runs) + len(begun) == at_once
        and set(runs.values()) == {1}
        and set(begun.values()) <= READING,
        counted=f"{len(runs)} calls waited and ran {sum(runs.values())} times;"
        f" {len(begun)} had begun, and only read",
    )


def _asked(root: Path) -> Claim:
    requests = read(root / places.REQUESTS)
    keys = Counter(str(each["key"]).rpartition("/")[2] for each in requests)
    expected = [f"model:{number}" for number in range(1, ANSWERS + 1)]
    return Claim(
        text="every model answer was asked for once",
        holds=keys == Counter(expected),
        counted=f"{len(requests)} requests for {len(keys)} answers",
    )
