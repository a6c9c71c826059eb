"""Hosts start, drain and close in order; a crash of background work is told and mended."""

import asyncio
from collections.abc import Callable

import pytest

from nerve.common.clock import VirtualClock, settle
from nerve.common.lifecycle import Background, Backoff, Lifecycle, Loop


class Recorder:
    """A part that writes down what happens to it."""

    def __init__(self, name: str, events: list[str], *, fails_at: str = "") -> None:
        self._name = name
        self._events = events
        self._fails_at = fails_at

    async def start(self) -> None:
        self._note("start")

    async def drain(self) -> None:
        self._note("drain")

    async def close(self) -> None:
        self._note("close")

    def _note(self, step: str) -> None:
        self._events.append(f"{step} {self._name}")
        if step == self._fails_at:
            raise RuntimeError(f"{self._name} cannot {step}")


class Hanging(Recorder):
    async def drain(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.Event().wait()


async def test_what_was_started_first_stops_last() -> None:
    events: list[str] = []
    host = Lifecycle([Recorder("lease", events), Recorder("broker", events)])
    await host.start()
    assert await host.drain()
    await host.close()
    await host.close()
    expected = ["start lease", "start broker", "drain broker", "drain lease"]
    assert [*expected, "close broker", "close lease"] == events


async def test_a_part_that_cannot_start_closes_the_others() -> None:
    events: list[str] = []
    parts = [Recorder("a", events), Recorder("b", events, fails_at="start"), Recorder("c", events)]
    with pytest.raises(RuntimeError, match="b cannot start"):
        await Lifecycle(parts).start()
    assert ["start a", "start b", "close b", "close a"] == events


async def test_a_part_that_fails_to_stop_keeps_nobody_open() -> None:
    events: list[str] = []
    host = Lifecycle([Recorder("a", events), Recorder("b", events, fails_at="close")])
    await host.start()
    await host.close()
    assert ["close b", "close a"] == events[2:]


async def test_a_part_that_hangs_is_left_after_its_time() -> None:
    clock, events = VirtualClock(), list[str]()
    host = Lifecycle(
        [Recorder("a", events), Hanging("b", events)], drain_seconds=3, close_seconds=5, clock=clock
    )
    await host.start()
    drain = asyncio.create_task(host.drain())
    await clock.until_waiting()
    await clock.advance(3)
    assert not await drain
    close = asyncio.create_task(host.close())
    await clock.until_waiting()
    await clock.advance(5)
    await close
    assert "close a" == events[-1]


class CountingScan:
    name = "counting"
    interval_seconds = 1.0

    def __init__(self, work: Callable[[int], bool] = lambda run: False) -> None:
        self.runs = 0
        self._work = work

    async def run_once(self) -> bool:
        self.runs += 1
        return self._work(self.runs)


@pytest.mark.law(9)
async def test_a_scan_runs_at_its_interval_without_any_hint() -> None:
    clock, scan = VirtualClock(), CountingScan()
    loop = Loop(scan, clock=clock)
    await loop.start()
    await clock.advance(3)
    await loop.close()
    assert 4 == scan.runs


async def test_a_poke_runs_the_scan_at_once_and_many_pokes_once() -> None:
    clock, scan = VirtualClock(), CountingScan()
    loop = Loop(scan, clock=clock)
    await loop.start()
    await settle()
    for _ in range(10):
        loop.poke()
    await settle()
    await loop.close()
    assert 2 == scan.runs


async def test_a_scan_with_more_to_do_goes_on_at_once() -> None:
    clock, scan = VirtualClock(), CountingScan(lambda run: run < 5)
    loop = Loop(scan, clock=clock)
    await loop.start()
    await settle(50)
    await loop.close()
    assert 5 == scan.runs


async def test_a_failing_scan_backs_off_and_recovers() -> None:
    def fail_twice(run: int) -> bool:
        if run <= 2:
            raise RuntimeError("no ledger")
        return False

    clock, scan = VirtualClock(), CountingScan(fail_twice)
    loop = Loop(scan, clock=clock, backoff=Backoff(first_seconds=1, most_seconds=8))
    await loop.start()
    await settle()
    assert "RuntimeError: no ledger" == loop.last_error
    await clock.advance(1)
    assert (2, 2) == (scan.runs, loop.failures)
    await clock.advance(2)
    assert (3, 0) == (scan.runs, loop.failures)
    assert loop.last_error is None
    await loop.close()


async def test_drain_lets_the_present_run_end_and_starts_no_other() -> None:
    gate, ended = asyncio.Event(), list[str]()

    class Slow(CountingScan):
        async def run_once(self) -> bool:
            await gate.wait()
            ended.append("run")
            return True

    loop = Loop(Slow(), clock=VirtualClock())
    await loop.start()
    await settle()
    drain = asyncio.create_task(loop.drain())
    await settle()
    assert not drain.done()
    gate.set()
    await drain
    assert ["run"] == ended


async def test_crashed_background_work_starts_again_after_a_backoff() -> None:
    clock, starts = VirtualClock(), list[float]()

    async def work() -> None:
        starts.append(clock.monotonic())
        if len(starts) < 4:
            raise RuntimeError("lost")

    background = Background(clock=clock, backoff=Backoff(first_seconds=1, most_seconds=100))
    task = background.run("consumer", work)
    await settle()
    assert {"consumer": "RuntimeError: lost"} == background.failures
    await clock.advance(10)
    await task
    assert [0.0, 1.0, 3.0, 7.0] == starts
    assert [] == background.names


async def test_work_that_closes_its_own_host_does_not_deadlock() -> None:
    background = Background()
    closed: list[str] = []

    async def closes_all() -> None:
        await background.close()
        closed.append("closed")

    async def runs_for_ever() -> None:
        await asyncio.Event().wait()

    other = background.run("other", runs_for_ever)
    await background.run("closer", closes_all)
    assert ["closed"] == closed
    assert other.cancelled()


async def test_nothing_starts_in_a_closing_host() -> None:
    background = Background()
    await background.close()

    async def late() -> None:
        raise AssertionError("must not run")

    with pytest.raises(RuntimeError, match="closing"):
        background.once("late", late())


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(first_seconds=5, most_seconds=300)
    waits = [backoff.after(failures) for failures in (1, 2, 3, 7, 1000)]
    assert [5, 10, 20, 300, 300] == waits
