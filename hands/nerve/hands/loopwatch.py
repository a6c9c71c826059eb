"""Says which tool blocks the event loop: an asynchronous tool that does not give way stops all others.

The lease is not at risk, since heartbeats come from a thread of their own; the other tools wait.
"""

import asyncio
import threading
from typing import final

from nerve.common.logs import get_log
from nerve.hands.metrics import HandsMetrics

_log = get_log("nerve.hands.loopwatch")

BLOCKED_SECONDS = 2.0


@final
class LoopWatch:
    """A thread that expects a sign of the loop every so often, and names the task that withholds it."""

    def __init__(self, metrics: HandsMetrics, *, seconds: float = BLOCKED_SECONDS) -> None:
        self._metrics = metrics
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._sign = threading.Event()
        self.blocked_by: str | None = None
        """The task that blocks the loop at this moment, as far as can be seen."""

    def start(self) -> None:
        threading.Thread(target=self._watch, name="nerve-loopwatch", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(self._seconds):
            self._sign.clear()
            try:
                self._loop.call_soon_threadsafe(self._sign.set)
            except RuntimeError:
                return  # The loop has ended.
            waited = 0.0
            while not self._sign.wait(self._seconds) and not self._stop.is_set():
                waited += self._seconds
                self._tell(waited)
            self.blocked_by = None

    def _tell(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        name = "unknown" if task is None else task.get_name()
        if self.blocked_by is None:
            self._metrics.blocked.add(self._metrics.route)
        self.blocked_by = name
        _log.warning(
            "a tool blocks the event loop; make it `def` instead of `async def`, or let it await",
            cause="loopwatch",
            code="loop_blocked",
            task=name,
            seconds=seconds,
        )
