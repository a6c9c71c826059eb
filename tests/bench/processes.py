"""What Linux says about processes: CPU, bytes written and resident memory, with children."""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
USER_TIME, SYSTEM_TIME, CHILDREN_USER, CHILDREN_SYSTEM = 11, 12, 13, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Totals of one process tree since its start."""

    cpu_s: float
    written: int


def stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rsplit(")", 1)[1].split()


def tree(pid: int) -> list[int]:
    """The process and its live descendants; of the measuring process only itself."""
    if pid == os.getpid():
        return [pid]
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat_fields(int(entry))):
            children[int(fields[1])].append(int(entry))
    found, todo = list[int](), [pid]
    while todo:
        found.append(todo.pop())
        todo += children[found[-1]]
    return found


def cpu_seconds(pid: int) -> float:
    last = SYSTEM_TIME if pid == os.getpid() else CHILDREN_SYSTEM
    total = 0
    for member in tree(pid):
        if fields := stat_fields(member):
            total += sum(int(ticks) for ticks in fields[USER_TIME : last + 1])
    return total / TICK


def own_seconds(pids: Iterable[int]) -> float:
    """CPU of processes that are known and have no new children: costs the measuring one next to nothing."""
    found = [fields for pid in pids if (fields := stat_fields(pid))]
    return sum(int(fields[USER_TIME]) + int(fields[SYSTEM_TIME]) for fields in found) / TICK


def labelled(path: str, label: str) -> int:
    """The first number after `label` in a /proc file; 0 where the process is gone."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(label)), 0)


def usage(pid: int) -> Usage:
    written = sum(labelled(f"/proc/{member}/io", "write_bytes:") for member in tree(pid))
    return Usage(cpu_s=cpu_seconds(pid), written=written)


def together(pids: Iterable[int]) -> Usage:
    each = [usage(pid) for pid in pids]
    return Usage(cpu_s=sum(one.cpu_s for one in each), written=sum(one.written for one in each))


def usages(roles: Mapping[str, int]) -> dict[str, Usage]:
    return {role: usage(pid) for role, pid in roles.items()}


def pss_mib(pid: int) -> float:
    kib = sum(labelled(f"/proc/{member}/smaps_rollup", "Pss:") for member in tree(pid))
    return round(kib / 1024, 1)


def machine_busy_s() -> float:
    """CPU seconds the whole machine spent since it started (user, nice, system, interrupts)."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[k]) for k in (0, 1, 2, 5, 6)) / TICK


def load() -> float:
    return float(Path("/proc/loadavg").read_text().split()[0])


def files_bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())
