"""The sabotages fit the source as it is, every law has one, and three of them are tried in each test run."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sabotage.run import QUICK, ROOT, OutOfDate, marked, patched
from sabotage.sabotages import SABOTAGES, Sabotage


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.name)
def test_each_sabotage_applies_to_the_source_as_it_is(sabotage: Sabotage) -> None:
    text = (ROOT / sabotage.path).read_text(encoding="utf-8")
    assert patched(text, sabotage) != text


def test_every_law_has_a_sabotage_and_tests() -> None:
    laws = {f"law:{number}" for number in range(1, 13)}
    assert laws <= {each.law for each in SABOTAGES}
    assert [law for law in sorted(laws) if not marked(law)] == []


def test_a_sabotage_that_no_longer_fits_is_told() -> None:
    with pytest.raises(OutOfDate, match="stands 0 times"):
        patched("another text", SABOTAGES[0])


def tried(*arguments: str) -> tuple[int, Sequence[str]]:
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "run.py", *arguments],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_broken_laws_are_noticed() -> None:
    code, lines = tried("--quick")
    assert (code, lines[-1]) == (0, f"{len(QUICK)} of {len(QUICK)} noticed"), lines
