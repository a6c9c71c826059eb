"""Run a coroutine whose awaits never suspend, without the event loop."""

from collections.abc import Awaitable, Generator
from typing import Any, TypeVar, cast

V = TypeVar("V")


def pump(awaitable: Awaitable[V]) -> V:
    """The result of `awaitable`, run to its end at once.

    Raises RuntimeError where it waits for anything: a law that awaits more than its transaction
    would hold the ledger's write lock meanwhile.
    """
    running = cast(Generator[Any, None, V], awaitable.__await__())
    try:
        next(running)
    except StopIteration as end:
        return cast(V, end.value)
    running.close()
    raise RuntimeError("a law awaited something that is not its transaction")
