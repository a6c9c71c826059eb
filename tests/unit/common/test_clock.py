"""Time is an input: virtual time moves only by hand and wakes everybody in order."""

import asyncio

import pytest

from nerve.common.clock import SystemClock, VirtualClock, nap, settle, wait_event, within

pytestmark = pytest.mark.law(12)


async def test_sleepers_wake_in_due_order_at_their_own_moment() -> None:
    clock = VirtualClock()
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
            group.create_task(sleeper(name, seconds))
        await clock.until_waiting(3)
        await clock.advance(10)
    assert [("early", 1.0), ("middle", 2.0), ("late", 3.0)] == seen


async def test_a_sleeper_that_sleeps_again_is_woken_within_one_advance() -> None:
    clock = VirtualClock()
    beats: list[float] = []

    async def heart() -> None:
        while len(beats) < 5:
            await clock.sleep(1)
            beats.append(clock.monotonic())

    task = asyncio.create_task(heart())
    await clock.until_waiting()
    await clock.advance(5)
    await task
    assert [1.0, 2.0, 3.0, 4.0, 5.0] == beats


async def test_a_cancelled_sleep_leaves_no_timer() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(5))
    await clock.until_waiting()
    task.cancel()
    await settle()
    assert 0 == clock.waiting
    assert clock.next_due_seconds is None


@pytest.mark.rule(4)
async def test_stepping_wall_time_moves_no_timer() -> None:
    clock = VirtualClock(now_ms=1000)
    task = asyncio.create_task(clock.sleep(5))
    await clock.until_waiting()
    clock.step_wall(3_600_000)
    await settle()
    assert 3_601_000 == clock.now_ms()
    assert 0.0 == clock.monotonic()
    assert not task.done()
    await clock.advance(5)
    assert task.done()


async def test_within_raises_timeout_on_virtual_time() -> None:
    clock = VirtualClock()

    async def waits_for_ever() -> None:
        async with within(clock, 3):
            await asyncio.Event().wait()

    task = asyncio.create_task(waits_for_ever())
    await clock.until_waiting()
    await clock.advance(2.9)
    assert not task.done()
    await clock.advance(0.2)
    with pytest.raises(TimeoutError):
        await task


async def test_waiting_for_an_event_tells_whether_it_came() -> None:
    clock, event = VirtualClock(), asyncio.Event()
    missed = asyncio.create_task(wait_event(clock, event, 1))
    await clock.until_waiting()
    await clock.advance(1)
    assert not await missed
    came = asyncio.create_task(wait_event(clock, event, 1))
    await clock.until_waiting()
    event.set()
    assert await came
    assert 0 == clock.waiting


async def test_naps_of_one_length_end_at_one_moment_or_with_their_bell() -> None:
    clock, rung, left = VirtualClock(), asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(nap(clock, left, 1))
    await clock.until_waiting()
    await clock.advance(0.4)
    second = asyncio.create_task(nap(clock, rung, 1))
    await clock.until_waiting(2)
    await clock.advance(0.5)
    assert not first.done() and not second.done()
    await clock.advance(0.1)
    await asyncio.gather(first, second)
    rung.clear()
    third = asyncio.create_task(nap(clock, rung, 1))
    await clock.until_waiting()
    rung.set()
    await third
    assert 0 == clock.waiting


async def test_until_waiting_fails_where_nobody_waits() -> None:
    with pytest.raises(TimeoutError, match="0 of 1"):
        await VirtualClock().until_waiting(turns=10)


async def test_the_system_clock_goes_forward() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    await clock.sleep(0)
    assert clock.monotonic() >= first
    assert clock.now_ms() > 1_600_000_000_000
