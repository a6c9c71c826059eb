"""Whether a recorded process is still that process: pid, start time and the place where pids count."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMark:
    """`place` is the boot and the pid namespace: only inside it does a pid mean anything."""

    pid: int
    started: str
    place: str


@cache
def place() -> str:
    """This boot and pid namespace; empty where the platform does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """The start time of `pid` in kernel ticks, as text; None where no such process is seen."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    # A zombie owns nothing any more: it only waits for its parent.
    return None if fields[0] in ("Z", "X") else fields[19]


def own() -> ProcessMark:
    return ProcessMark(pid=os.getpid(), started=started(os.getpid()) or "", place=place())


def proven_gone(mark: ProcessMark, *, one_machine: bool = True) -> bool:
    """True only where this process can see that the marked one ended.

    `one_machine`: it was on this machine, whose every boot ends what ran before. Otherwise another boot
    is another machine, of which nothing is known.
    """
    if not mark.place or not mark.started or mark.place.partition(":")[0] == "":
        return False
    here = place()
    if not here:
        return False
    if here.partition(":")[0] != mark.place.partition(":")[0]:
        return one_machine
    return here == mark.place and started(mark.pid) != mark.started


def is_same(mark: ProcessMark) -> bool:
    """True only where this process can see that the marked one still runs."""
    return bool(mark.place) and place() == mark.place and started(mark.pid) == mark.started
