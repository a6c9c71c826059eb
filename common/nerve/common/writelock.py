"""Which process holds the write lock of a SQLite file in WAL mode: a frozen one stops every other.

The lock is a POSIX lock on one byte of the `-shm` file. The kernel's own list is read instead of the file,
since opening and closing that file would drop the locks that this process holds on it.
"""

import os
from pathlib import Path

# unixShmLock of SQLite: the locks start at byte 120, the write lock is the first of them.
_WRITE_LOCK = ("120", "120")
_KERNEL_LIST = Path("/proc/locks")


def holder(database: Path, *, kernel_list: Path = _KERNEL_LIST) -> int | None:
    """The pid that may write to `database` now; None where nobody does or nobody can tell."""
    try:
        inode = str(os.stat(f"{database}-shm").st_ino)
        lines = kernel_list.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        # "1: POSIX ADVISORY WRITE <pid> <major:minor:inode> <start> <end>"; a waiter has an arrow.
        if len(fields) == 8 and fields[1] == "POSIX" and fields[3] == "WRITE":
            place = fields[5].rpartition(":")[2]
            if place == inode and (fields[6], fields[7]) == _WRITE_LOCK and int(fields[4]) > 0:
                return int(fields[4])
    return None


def described(database: Path) -> str:
    """The holder for an error message: pid, state and command, or that it cannot be seen."""
    pid = holder(database)
    if pid is None:
        return "nobody is seen to hold its write lock"
    if pid == os.getpid():
        return "this process holds its write lock itself"
    frozen = ", which is frozen," if is_stopped(pid) else ""
    return f"process {pid} ({_command(pid)}){frozen} holds its write lock"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return line.rpartition(")")[2].split()[0] in ("T", "t")


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "gone"
    return raw.strip()[:40]
