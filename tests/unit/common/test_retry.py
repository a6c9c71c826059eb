"""Retries: only what is told to be repeatable, spaced on the injected clock, with an end."""

import asyncio

import pytest

from nerve.common.clock import VirtualClock
from nerve.common.retry import idempotent, reconnect
from nerve.protocol.errors import BrokerUnavailable, DiskFull


class Flaky:
    """Fails a number of times."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return "here"


async def drive(clock: VirtualClock, task: "asyncio.Task[str]") -> None:
    while not task.done():
        await clock.advance(1)


async def test_a_passing_error_is_tried_again() -> None:
    clock, flaky = VirtualClock(), Flaky(2, BrokerUnavailable("away"))
    task = asyncio.create_task(idempotent(flaky, name="x", clock=clock))
    await drive(clock, task)
    assert ("here", 3) == (await task, flaky.calls)


async def test_the_last_error_comes_out_after_the_attempts() -> None:
    clock, flaky = VirtualClock(), Flaky(99, BrokerUnavailable("away"))
    task = asyncio.create_task(idempotent(flaky, name="x", attempts=3, clock=clock))
    await drive(clock, task)
    with pytest.raises(BrokerUnavailable):
        await task
    assert 3 == flaky.calls


@pytest.mark.parametrize("error", [ValueError("bug"), DiskFull("full")])
async def test_other_errors_and_a_full_disk_are_not_tried_again(error: Exception) -> None:
    flaky = Flaky(1, error)
    with pytest.raises(type(error)):
        await idempotent(flaky, name="x", clock=VirtualClock())
    assert 1 == flaky.calls


async def test_a_reconnect_goes_on_until_it_stands() -> None:
    clock, flaky = VirtualClock(), Flaky(50, OSError("refused"))
    task = asyncio.create_task(reconnect(flaky, name="x", clock=clock))
    await drive(clock, task)
    assert ("here", 51) == (await task, flaky.calls)
