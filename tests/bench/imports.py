"""CPU that a command spends before it does anything: `import nerve.brain` and `nerve --help`."""

import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROUNDS = 7
COMMANDS: dict[str, Sequence[str]] = {
    "python": (sys.executable, "-c", "pass"),
    "import nerve.brain": (sys.executable, "-c", "import nerve.brain"),
    "nerve --help": (str(Path(sys.executable).with_name("nerve")), "--help"),
}


def children_cpu_s() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def cpu_s(command: Sequence[str]) -> float | None:
    """CPU seconds of one run, or None where the command does not work."""
    before = children_cpu_s()
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return children_cpu_s() - before if done.returncode == 0 else None


def measure() -> dict[str, float | None]:
    """Medians, the commands alternated; the first round only fills caches."""
    taken: dict[str, list[float | None]] = {name: [] for name in COMMANDS}
    for turn in range(ROUNDS + 1):
        for name, command in COMMANDS.items():
            spent = cpu_s(command)
            if turn:
                taken[name].append(spent)
    return {
        name: None if None in spent else round(statistics.median(filter(None, spent)), 3)
        for name, spent in taken.items()
    }
