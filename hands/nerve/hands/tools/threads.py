"""Threads for synchronous tools: daemons, because a stuck tool must not keep the process from ending."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nerve.protocol.errors import Unavailable

Late = Callable[[Any, BaseException | None], None]
"""Called on the loop with what an abandoned call returned or raised in the end."""


class ThreadsClosed(Unavailable):
    """The host is closing: the call was not made."""


@dataclass(slots=True)
class _Job:
    call: Callable[[], Any]  # A user's function returns anything.
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    late: Late
    abandoned: bool = False
    over: bool = False


class Threads:
    """At most `most` threads, made when they are needed; idle ones wait for the next call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._closed = False

    async def run(self, call: Callable[[], Any], late: Late) -> Any:
        """What `call` returns or raises, whatever that is.

        Cancelling abandons the call: it runs on, and `late` hears of its end.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        job = _Job(call, contextvars.copy_context(), loop, future, late)
        with self._lock:
            if self._closed:
                raise ThreadsClosed("the threads of this host are closed", where="tools")
            if self._idle == 0 and self._threads < self._most:
                self._threads += 1
                name = f"nerve-tool-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            else:
                self._idle -= 1
        self._queue.put(job)
        try:
            return await future
        except asyncio.CancelledError:
            self._abandon(job)
            raise

    def _abandon(self, job: _Job) -> None:
        """Its thread may never come back, so another one may be made in its place."""
        with self._lock:
            if not job.over:
                job.abandoned = True
                self._most += 1

    def close(self) -> None:
        """Let idle threads end; those with a stuck tool are left to the end of the process."""
        with self._lock:
            self._closed = True
            count = self._threads
        for _ in range(count):
            self._queue.put(None)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            outcome: Any = None
            error: BaseException | None = None
            try:
                outcome = job.context.run(job.call)
            except BaseException as raised:
                error = raised
            self._end(job, outcome, error)
            if job.abandoned:
                return
            del job, outcome, error

    def _end(self, job: _Job, outcome: Any, error: BaseException | None) -> None:
        with self._lock:
            job.over = True
            if job.abandoned:
                self._most -= 1
                self._threads -= 1
            else:
                self._idle += 1
        try:
            if job.abandoned:
                job.loop.call_soon_threadsafe(job.late, outcome, error)
            else:
                job.loop.call_soon_threadsafe(_resolve, job.future, outcome, error)
        except RuntimeError:
            pass  # The loop has ended; nobody waits any more.


def _resolve(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:
        # SystemExit and its like would end the loop if a future carried them.
        future.set_exception(Contained(error))


class Contained(Exception):
    """Something that is no Exception left a tool; `error` is what it was."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
