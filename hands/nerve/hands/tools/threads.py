"""Threads for synchronous tools: daemons, because a stuck tool must not keep the process from ending."""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nerve.protocol.errors import Unavailable


@dataclass(slots=True)
class _Job:
    call: Callable[[], Any]  # A user's function returns anything.
    context: contextvars.Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    abandoned: bool = False


class Threads:
    """At most `most` threads, made when they are needed; idle ones wait for the next call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._closed = False

    async def run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises, whatever that is. Cancelling abandons it, it runs on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        job = _Job(call, contextvars.copy_context(), loop, future)
        with self._lock:
            if self._closed:
                raise Unavailable("the threads of this host are closed", where="tools")
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
            with self._lock:
                # Its thread may never come back, so another one may be made in its place.
                job.abandoned = True
                self._most += 1
            raise

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
            with self._lock:
                self._idle += not job.abandoned
            try:
                job.loop.call_soon_threadsafe(_resolve, job.future, outcome, error)
            except RuntimeError:
                return  # The loop has ended; nobody waits any more.
            if job.abandoned:
                with self._lock:
                    self._most -= 1
                    self._threads -= 1
                return
            del job, outcome, error


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
