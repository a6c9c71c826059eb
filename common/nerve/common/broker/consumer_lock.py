"""Which consumers of a queue file live: each process holds a file lock that dies with it."""

import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import final

from nerve.common.broker.sqlite_file import try_flock

_PREFIX = "consumer-"
_SUFFIX = ".lock"


@final
class ConsumerLock:
    """The proof that this process lives, for as long as it does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.consumer = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._path = folder / f"{_PREFIX}{self.consumer}{_SUFFIX}"
        temporary = folder / f"{self.consumer}.new"
        # Nobody may see the file before it is locked: an unlocked one means a dead consumer.
        self._descriptor = os.open(
            temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try_flock(self._descriptor)
        temporary.rename(self._path)

    def close(self) -> None:
        with suppress(FileNotFoundError):
            self._path.unlink()
        os.close(self._descriptor)


@final
class DeadConsumer:
    """A consumer whose lock we took; `close` removes its file once its claims are gone."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self.consumer = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)

    def close(self, *, released: bool) -> None:
        if released:
            with suppress(FileNotFoundError):
                self._path.unlink()
        os.close(self._descriptor)


def dead_consumers(folder: Path, *, besides: str) -> Iterator[DeadConsumer]:
    """Those whose lock is free. The caller closes each."""
    own = f"{_PREFIX}{besides}{_SUFFIX}"
    for entry in _entries(folder):
        if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX) and entry.name != own:
            with suppress(FileNotFoundError):
                descriptor = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)
                if try_flock(descriptor):
                    yield DeadConsumer(Path(entry.path), descriptor)
                else:
                    os.close(descriptor)


def is_known(folder: Path, consumer: str) -> bool:
    """Whether anything says that this consumer lived: a claim of an unknown one is nobody's."""
    return (folder / f"{_PREFIX}{consumer}{_SUFFIX}").exists()


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
