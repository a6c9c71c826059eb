"""Waiting for a fact with a deadline: the only way in which a test may let real time pass."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

V = TypeVar("V")

SECONDS = 20.0


async def until(fact: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Return once `fact()` holds; fail with `what` did not happen."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not fact():
        if loop.time() > deadline:
            raise AssertionError(f"within {seconds:g} s: {what}")
        await asyncio.sleep(0.002)


async def soon(awaitable: Awaitable[V], seconds: float = SECONDS) -> V:
    """The result of `awaitable`, which must not hang."""
    async with asyncio.timeout(seconds):
        return await awaitable


@asynccontextmanager
async def running(work: Awaitable[V]) -> AsyncGenerator["asyncio.Future[V]"]:
    """Work beside a block; it is cancelled where the block ends before it."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
