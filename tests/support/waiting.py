"""Waiting for a fact with a deadline: the only way in which a test may let real time pass."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

V = TypeVar("V")
W = TypeVar("W")

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


async def race(
    one: Coroutine[Any, Any, V], other: Coroutine[Any, Any, W], *, first: int
) -> tuple[V, W]:
    """Both at once; `one` begins where `first` is not 0, else the other."""
    if first:
        mine, theirs = await asyncio.gather(one, other)
    else:
        theirs, mine = await asyncio.gather(other, one)
    return mine, theirs


@asynccontextmanager
async def running(work: Awaitable[V]) -> AsyncGenerator["asyncio.Future[V]"]:
    """Work beside a block; it is cancelled where the block ends before it."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
