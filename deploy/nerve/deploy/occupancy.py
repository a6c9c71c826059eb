"""Who may run on one state directory: Brains and Hands side by side, or one process that holds both."""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from nerve.common.place import StateDirectory
from nerve.protocol.errors import Conflict

_FILE = "occupancy"


@contextmanager
def occupied(place: StateDirectory, *, alone: bool) -> Generator[None]:
    """Hold the directory, shared or alone, for the length of a block; the lock dies with the process.

    Raises:
        Conflict: another process holds it in a way that does not fit.
    """
    path = place.locks / _FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        taken = _taken(place.path, descriptor)
        os.close(descriptor)
        raise taken from None
    try:
        os.ftruncate(descriptor, 0)
        if alone:
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(directory: Path, descriptor: int) -> Conflict:
    with suppress(OSError, ValueError):
        pid = int(os.pread(descriptor, 20, 0) or b"x")
        return Conflict(
            f"`nerve dev` (pid {pid}) already runs on {directory}, Brain and Hands in one process",
            where="--dir",
            next_step="Use it (`nerve submit ...`), stop it, or name another directory with --dir",
        )
    return Conflict(
        f"a Brain or Hands process already runs on {directory}; `nerve dev` needs it alone",
        where="--dir",
        next_step="`nerve doctor` names it; stop it, or name another directory with --dir",
    )
