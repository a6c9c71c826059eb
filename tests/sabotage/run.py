"""Breaks each law on purpose, in a copy of the tree, and fails where the tests marked for that law still pass.

usage: run.py [--quick] [NAME ...]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from sabotage.sabotages import SABOTAGES, Sabotage

ROOT = Path(__file__).parents[2]
ROOMS = ("protocol", "common", "brain", "hands", "deploy")
QUICK = ("fence-without-token", "receipts-are-not-read", "a-wish-is-a-confirmation")
SECONDS = 600
ENOUGH = 4
EMBEDDED = "not postgres and not rabbitmq and not rocketmq and not s3"
LOADS = "import nerve.brain.runtime, nerve.hands.worker, nerve.deploy.host, nerve.deploy.commands"


class OutOfDate(Exception):
    """A sabotage whose text is not in the source any more, or that breaks more than a law."""


def patched(text: str, sabotage: Sabotage) -> str:
    """The sabotaged source. Raises OutOfDate."""
    found = text.count(sabotage.old)
    if found != sabotage.times or sabotage.old == sabotage.new:
        raise OutOfDate(f"{sabotage.name}: its text stands {found} times in {sabotage.path}")
    return text.replace(sabotage.old, sabotage.new)


def copied(target: Path) -> None:
    """Everything that a test run needs."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache")
    for name in (*ROOMS, "tests", "docs", "examples"):
        shutil.copytree(ROOT / name, target / name, ignore=ignored)
    for name in ("pyproject.toml", "Makefile", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)


def environment(tree: Path) -> dict[str, str]:
    paths = os.pathsep.join(str(tree / room) for room in ROOMS)
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


def marked(law: str, root: Path = ROOT) -> Sequence[str]:
    """Test files with a mark for this law or rule, relative to the root, quick ones first."""
    kind, _, number = law.partition(":")
    mark = re.compile(rf"mark\.{kind}\((\d+, *)*{number}\b")
    files = [
        path
        for path in sorted((root / "tests").rglob("test_*.py"))
        if mark.search(path.read_text())
    ]
    ordered = sorted(files, key=lambda path: "unit" not in path.parts)
    return [str(path.relative_to(root)) for path in ordered]


def run(tree: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def noticed(tree: Path, sabotage: Sabotage) -> str | None:
    """The first test of the law that fails; None where all of them pass. Raises OutOfDate."""
    source = tree / sabotage.path
    whole = source.read_text(encoding="utf-8")
    source.write_text(patched(whole, sabotage), encoding="utf-8")
    try:
        loaded = run(tree, ["-c", LOADS])
        if loaded.returncode != 0:
            raise OutOfDate(f"{sabotage.name}: nothing loads any more: {loaded.stderr[-500:]}")
        return next(failures(tree, sabotage.law), None)
    finally:
        source.write_text(whole, encoding="utf-8")


def failures(tree: Path, law: str) -> Iterator[str]:
    """Failing tests of a law: looked for among the quick tests first."""
    files = marked(law, tree)
    if not files:
        raise OutOfDate(f"no test is marked for {law}")
    for chosen in ("not slow and not chaos", "slow or chaos"):
        pytest = ["-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--timeout=60"]
        done = run(tree, [*pytest, "--claim", law, "-m", chosen, *files])
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode == 1 and failed:
            yield failed[0]
        elif done.returncode not in (0, 5):
            raise OutOfDate(
                f"{law}: the tests did not run: {done.stdout[-500:]}{done.stderr[-500:]}"
            )


def attempt(tree: Path, sabotage: Sabotage) -> bool:
    """Tell what became of one sabotage; whether it was noticed."""
    try:
        test = noticed(tree, sabotage)
    except (OutOfDate, subprocess.TimeoutExpired) as error:
        print(f"OUT OF DATE  {sabotage.law:8} {sabotage.name}: {error}", flush=True)
        return False
    if test is None:
        print(f"UNNOTICED    {sabotage.law:8} {sabotage.name}", flush=True)
        return False
    print(f"noticed      {sabotage.law:8} {sabotage.name}: {test}", flush=True)
    return True


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args(arguments)
    names = options.names or (QUICK if options.quick else [each.name for each in SABOTAGES])
    unknown = set(names) - {each.name for each in SABOTAGES}
    if unknown:
        parser.error(f"no sabotage {', '.join(sorted(unknown))}")
    chosen = [each for each in SABOTAGES if each.name in names]
    with tempfile.TemporaryDirectory(prefix="nerve-sabotage-") as directory:
        tree = Path(directory)
        copied(tree)
        found = [attempt(tree, each) for each in chosen]
    print(f"{sum(found)} of {len(found)} noticed")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
