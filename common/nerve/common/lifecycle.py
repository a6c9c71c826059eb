"""Start, drain and close in order; background work that is restarted when it crashes; scans on one loop.

The last part that was started is the first that stops, so what everything else stands on (the renewal of
the lease) is started first and stops last.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from nerve.common.clock import Clock, SystemClock, nap, within
from nerve.common.logs import get_log

_log = get_log("nerve.common.lifecycle")


class Part(Protocol):
    """Something that lives as long as its host."""

    async def start(self) -> None: ...

    async def drain(self) -> None:
        """Take nothing new and finish what is at hand."""
        ...

    async def close(self) -> None:
        """Let go of everything. Harmless when repeated, and without a drain before it."""
        ...


class Scan(Protocol):
    """One duty that looks for work: all of it is findable without any hint."""

    @property
    def name(self) -> str: ...

    @property
    def interval_seconds(self) -> float: ...

    async def run_once(self) -> bool:
        """Do what is due, in bounded portions; true means that more may be waiting right now."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubling delays between attempts."""

    first_seconds: float = 0.1
    most_seconds: float = 10.0

    def after(self, failures: int) -> float:
        doublings = min(max(failures - 1, 0), 62)
        return min(self.most_seconds, self.first_seconds * float(2**doublings))


@final
class Background:
    """Named coroutines of one host. A crash is logged and the work starts again after a backoff."""

    def __init__(self, *, clock: Clock | None = None, backoff: Backoff | None = None) -> None:
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff()
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._closing = False
        self.failures: dict[str, str] = {}
        """The last error of each work that is in its backoff, for `why` and `doctor`."""

    @property
    def names(self) -> list[str]:
        return sorted(self._tasks.values())

    def run(self, name: str, work: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        """Keep `work` going until it returns by itself or everything is closed."""
        return self._spawn(name, self._supervise(name, work))

    def once(self, name: str, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Run `work` to its end; an error is logged, not repeated."""
        if self._closing:
            work.close()
        task = self._spawn(name, self._guard(name, work))
        # A task that is cancelled before its first step never touches the coroutine it was given.
        task.add_done_callback(lambda _: work.close())
        return task

    async def close(self, seconds: float = 5.0) -> None:
        """Cancel all and wait for it; callable from inside one of the tasks without a deadlock."""
        self._closing = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=seconds)
            if late:
                _log.warning("background work did not stop", names=[self._tasks[t] for t in late])

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._closing:
            work.close()
            raise RuntimeError(f"{name} cannot start: its host is closing")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = name
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _supervise(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        failures = 0
        while True:
            started = self._clock.monotonic()
            try:
                await work()
                return
            except Exception as error:
                if self._clock.monotonic() - started > 2 * self._backoff.most_seconds:
                    failures = 0
                failures += 1
                self._crashed(name, error)
            await self._clock.sleep(self._backoff.after(failures))
            self.failures.pop(name, None)

    async def _guard(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Exception as error:
            self._crashed(name, error)

    def _crashed(self, name: str, error: Exception) -> None:
        self.failures[name] = f"{type(error).__name__}: {error}"
        _log.error("background work crashed", work=name, cause=name, error=error)


@final
class Loop:
    """Drives one scan: at its interval, at once after `poke`, and again at once while there is more."""

    def __init__(
        self, scan: Scan, *, clock: Clock | None = None, backoff: Backoff | None = None
    ) -> None:
        self._scan = scan
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff()
        self._poked = asyncio.Event()
        self._draining = False
        self._task: asyncio.Task[None] | None = None
        self.runs = 0
        self.failures = 0
        self.last_error: str | None = None

    @property
    def name(self) -> str:
        return self._scan.name

    def poke(self) -> None:
        """Look now, not at the next interval. Many pokes during a run cost one more run."""
        self._poked.set()

    async def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._drive(), name=self._scan.name)

    async def drain(self) -> None:
        """Finish the run that is under way and start no other."""
        self._draining = True
        self.poke()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        self._draining = True
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    async def _drive(self) -> None:
        while not self._draining:
            self._poked.clear()
            more = await self._run_once()
            if more and self.failures == 0:
                await asyncio.sleep(0)
                continue
            await self._rest()

    async def _rest(self) -> None:
        if self._draining:
            return
        if self.failures:
            await self._clock.sleep(self._backoff.after(self.failures))
        else:
            await nap(self._clock, self._poked, self._scan.interval_seconds)

    async def _run_once(self) -> bool:
        try:
            more = await self._scan.run_once()
        except Exception as error:
            self.failures += 1
            self.last_error = f"{type(error).__name__}: {error}"
            _log.error("scan failed", scan=self.name, cause=self.name, error=error)
            return False
        self.runs += 1
        self.failures = 0
        self.last_error = None
        return more


@final
class Lifecycle:
    """The parts of one host, in the order in which they stand on each other."""

    def __init__(
        self,
        parts: Sequence[Part] = (),
        *,
        drain_seconds: float = 30.0,
        close_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._parts = list(parts)
        self._started: list[Part] = []
        self._drain_seconds = drain_seconds
        self._close_seconds = close_seconds
        self._clock = clock or SystemClock()

    def add(self, part: Part) -> None:
        self._parts.append(part)

    async def start(self) -> None:
        """Start each part; where one cannot start, close what was started and raise its error."""
        try:
            for part in self._parts:
                self._started.append(part)
                await part.start()
        except BaseException:
            await self.close()
            raise

    async def drain(self) -> bool:
        """Drain in reverse order within one deadline; tell whether all of it finished."""
        try:
            async with within(self._clock, self._drain_seconds):
                for part in reversed(self._started):
                    await _attempt(part, "drain", part.drain)
        except TimeoutError:
            _log.warning("drain ran out of time", seconds=self._drain_seconds)
            return False
        return True

    async def close(self) -> None:
        """Close in reverse order; a part that hangs or fails does not keep the others open."""
        while self._started:
            part = self._started.pop()
            try:
                async with within(self._clock, self._close_seconds):
                    await _attempt(part, "close", part.close)
            except TimeoutError:
                _log.warning("part did not close in time", part=type(part).__name__)


async def _attempt(part: Part, step: str, call: Callable[[], Awaitable[None]]) -> None:
    try:
        await call()
    except TimeoutError:
        raise
    except Exception as error:
        _log.error("part failed to stop", part=type(part).__name__, step=step, error=error)
