"""What a tool prints goes to the output of its execution; everything else prints as before."""

import sys
from typing import TextIO

from nerve.hands.port import current_run


class Printing:
    """Stands in for `sys.stdout` or `sys.stderr` while a worker lives."""

    def __init__(self, under: TextIO) -> None:
        self.under = under

    def write(self, text: str) -> int:
        run = current_run.get()
        if run is None:
            return self.under.write(text)
        run.write(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        if current_run.get() is None:
            self.under.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self.under, name)


_users = 0


def install() -> None:
    """Catch what tools print. Several workers of one process share it."""
    global _users
    _users += 1
    if _users == 1:
        sys.stdout = _wrapped(sys.stdout)
        sys.stderr = _wrapped(sys.stderr)


def uninstall() -> None:
    global _users
    _users -= 1
    if _users == 0:
        sys.stdout = _unwrapped(sys.stdout)
        sys.stderr = _unwrapped(sys.stderr)


def _wrapped(stream: TextIO) -> TextIO:
    made: TextIO = Printing(stream)  # type: ignore[assignment]  # the rest is passed through
    return made


def _unwrapped(stream: TextIO) -> TextIO:
    return stream.under if isinstance(stream, Printing) else stream
