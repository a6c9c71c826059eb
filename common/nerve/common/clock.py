"""Time as an input: the `Clock` port, the real clock, and a virtual one that tests move by hand.

Only this module reads a clock. `now_ms` is wall time, for display and due times; `monotonic` measures
how long something took and never jumps; nothing may compare the monotonic readings of two processes.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Timer(Protocol):
    """A callback that is due later and can still be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Where every module gets its time from. `call_later` belongs to the running event loop."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer: ...


@final
class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


@final
class _VirtualTimer:
    __slots__ = ("callback", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], object]) -> None:
        self.due = due
        self.order = order
        self.callback: Callable[[], object] | None = callback

    def __lt__(self, other: "_VirtualTimer") -> bool:
        return (self.due, self.order) < (other.due, other.order)

    def cancel(self) -> None:
        self.callback = None


@final
class VirtualClock:
    """Time stands still until `advance`; timers fire in due order, and what they wake runs in between."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_origin_ms = now_ms
        self._monotonic = 0.0
        self._order = 0
        self._timers: list[_VirtualTimer] = []

    def now_ms(self) -> int:
        return self._wall_origin_ms + round(self._monotonic * 1000)

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: _resolve(woken))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        self._order += 1
        timer = _VirtualTimer(self._monotonic + max(0.0, seconds), self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    @property
    def waiting(self) -> int:
        """How many timers are pending: a test waits for this fact before it moves time."""
        return sum(timer.callback is not None for timer in self._timers)

    @property
    def next_due_seconds(self) -> float | None:
        """How far the next timer is away, or None if nothing waits."""
        self._drop_cancelled()
        return max(0.0, self._timers[0].due - self._monotonic) if self._timers else None

    def step_wall(self, milliseconds: int) -> None:
        """Wall time jumps, as when an operator sets the clock; monotonic time does not."""
        self._wall_origin_ms += milliseconds

    async def advance(self, seconds: float) -> None:
        """Move time forward, firing each due timer at its own moment and letting its task run."""
        target = self._monotonic + seconds
        await settle()
        while (timer := self._pop_due(target)) is not None:
            self._monotonic = max(self._monotonic, timer.due)
            if timer.callback is not None:
                timer.callback()
            await settle()
        self._monotonic = target
        await settle()

    async def until_waiting(self, count: int = 1, *, turns: int = 10_000) -> None:
        """Let tasks run until at least `count` timers are pending."""
        for _ in range(turns):
            if self.waiting >= count:
                return
            await asyncio.sleep(0)
        raise TimeoutError(f"{self.waiting} of {count} expected timers are pending")

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)

    def _pop_due(self, target: float) -> _VirtualTimer | None:
        self._drop_cancelled()
        if self._timers and self._timers[0].due <= target:
            return heapq.heappop(self._timers)
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def settle(turns: int = 20) -> None:
    """Give tasks that are ready a few turns of the event loop. For tests on virtual time."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until `event` is set, at most `seconds`; tell whether it is. Costs no task."""
    if event.is_set():
        return True
    if seconds is None:
        return await event.wait()
    try:
        async with within(clock, seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def nap(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Wait until `event` is set; after about `seconds` the nap sets it itself.

    Naps of one length end at the same moments, so that an idle process wakes once for all of them.
    """
    if event.is_set():
        return
    left = seconds - clock.monotonic() % seconds
    timer = clock.call_later(left if left > seconds / 10 else left + seconds, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


def within(clock: Clock, seconds: float) -> AbstractAsyncContextManager[None]:
    """`asyncio.timeout` on an injected clock: TimeoutError once `seconds` of it have passed."""
    return _within(clock, seconds)


@asynccontextmanager
async def _within(clock: Clock, seconds: float) -> "AsyncGenerator[None]":
    async with asyncio.timeout(None) as timeout:
        loop = asyncio.get_running_loop()
        timer = clock.call_later(seconds, lambda: timeout.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()
