"""How a host is asked to stop: the first signal lets it finish what it has, the second ends it now."""

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Self, final

INTERRUPTED = 130


@final
class Stop:
    """`asked` after SIGINT or SIGTERM, `forced` after another one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()

    def request(self) -> None:
        if self.asked.is_set():
            self.forced.set()
        self.asked.set()

    @classmethod
    @contextmanager
    def catching(cls) -> Generator[Self]:
        """Signals of this process go here for the length of a block."""
        stop = cls()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, stop.request)
        try:
            yield stop
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
