"""Trying again where that is safe: reconnects, and I/O that may be repeated without harm.

Never a tool, never a model call: those have durable policies of their own, decided by a ledger.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from nerve.common.clock import Clock, SystemClock
from nerve.common.logs import get_log
from nerve.protocol.errors import DiskFull, Unavailable

if TYPE_CHECKING:
    from tenacity import RetryCallState

V = TypeVar("V")

_log = get_log("nerve.common.retry")


async def idempotent(
    call: Callable[[], Awaitable[V]],
    *,
    name: str,
    on: tuple[type[BaseException], ...] = (Unavailable, OSError),
    attempts: int = 4,
    first_seconds: float = 0.05,
    most_seconds: float = 2.0,
    clock: Clock | None = None,
) -> V:
    """The result of `call`, tried again a few times with growing, jittered pauses; then its last error.

    A full disk is not tried again here: it needs a person.
    """
    retrying = _retrying(
        name,
        on,
        first_seconds=first_seconds,
        most_seconds=most_seconds,
        attempts=attempts,
        clock=clock or SystemClock(),
    )
    result: V = await retrying(call)
    return result


async def reconnect(
    connect: Callable[[], Awaitable[V]],
    *,
    name: str,
    on: tuple[type[BaseException], ...] = (Unavailable, OSError),
    first_seconds: float = 0.1,
    most_seconds: float = 5.0,
    clock: Clock | None = None,
) -> V:
    """The connection, tried until it stands or the caller is cancelled. One log line a second at most."""
    retrying = _retrying(
        name,
        on,
        first_seconds=first_seconds,
        most_seconds=most_seconds,
        attempts=None,
        clock=clock or SystemClock(),
    )
    result: V = await retrying(connect)
    return result


def _retrying(
    name: str,
    on: tuple[type[BaseException], ...],
    *,
    first_seconds: float,
    most_seconds: float,
    attempts: int | None,
    clock: Clock,
) -> Any:  # tenacity types its call by the function, which a generic V cannot express
    from tenacity import (
        AsyncRetrying,
        retry_if_exception,
        stop_after_attempt,
        stop_never,
        wait_random_exponential,
    )

    def again(error: BaseException) -> bool:
        return isinstance(error, on) and not isinstance(error, DiskFull)

    def tell(state: "RetryCallState") -> None:
        error = state.outcome.exception() if state.outcome else None
        _log.warning("trying again", call=name, cause=name, attempt=state.attempt_number, why=error)

    return AsyncRetrying(
        retry=retry_if_exception(again),
        stop=stop_never if attempts is None else stop_after_attempt(attempts),
        wait=wait_random_exponential(multiplier=first_seconds, max=most_seconds),
        before_sleep=tell,
        sleep=clock.sleep,
        reraise=True,
    )
