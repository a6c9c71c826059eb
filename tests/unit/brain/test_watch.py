"""Waiting for a result looks when there is reason to look, and never waits for a hint alone."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from nerve.brain.watch import Watch
from nerve.common.clock import VirtualClock, settle
from nerve.common.sql import Ledger
from nerve.common.wakeups import LocalWakeups
from nerve.protocol.identity import ThreadKey

THREAD = ThreadKey.parse("n/s/main")
SCAN = 1.0


class Looks:
    """A ledger of one Turn, counting who looks at it."""

    def __init__(self) -> None:
        self.ended = False
        self.count = 0

    async def read(self, query: Callable[[Any], Awaitable[Any]]) -> Any:
        self.count += 1
        return await query(self)

    async def one(self, statement: object, /, **parameters: object) -> dict[str, object]:
        phase = "COMPLETED" if self.ended else "RUNNING"
        return {"id": parameters["id"], "phase": phase, "output": None, "failure": None}


@asynccontextmanager
async def waiting(
    watch: Watch, clock: VirtualClock, turn: str
) -> AsyncGenerator[asyncio.Task[Any]]:
    task = asyncio.create_task(watch.result(THREAD, turn, None))
    await clock.until_waiting()
    yield task
    task.cancel()
    await asyncio.wait([task])


@pytest.fixture
async def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def looks() -> Looks:
    return Looks()


@pytest.fixture
async def watch(clock: VirtualClock, looks: Looks) -> AsyncGenerator[Watch]:
    made = Watch(cast("Ledger", looks), LocalWakeups(), clock, scan_seconds=SCAN)
    async with waiting(made, clock, "t1"):
        assert looks.count == 1
    yield made
    made.close()


async def test_whoever_submitted_looks_first_after_the_ring(
    watch: Watch, clock: VirtualClock, looks: Looks
) -> None:
    watch.expect("t2")
    async with waiting(watch, clock, "t2") as task:
        await settle()
        assert looks.count == 1
        looks.ended = True
        watch.tell("t2", ended=True)
        assert (await task).turn == "t2"
    assert looks.count == 2


async def test_a_ring_before_the_wait_is_not_missed(watch: Watch, looks: Looks) -> None:
    watch.expect("t2")
    looks.ended = True
    watch.tell("t2", ended=True)
    assert (await watch.result(THREAD, "t2", None)).turn == "t2"


async def test_a_lost_ring_costs_one_scan(watch: Watch, clock: VirtualClock, looks: Looks) -> None:
    watch.expect("t2")
    async with waiting(watch, clock, "t2") as task:
        looks.ended = True
        await clock.advance(SCAN)
        assert (await task).turn == "t2"


async def test_who_comes_late_looks_at_once(
    watch: Watch, clock: VirtualClock, looks: Looks
) -> None:
    watch.expect("t2")
    await clock.advance(SCAN)
    looks.ended = True
    assert (await watch.result(THREAD, "t2", None)).turn == "t2"
