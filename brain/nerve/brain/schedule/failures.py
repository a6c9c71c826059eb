"""How what goes wrong in a Run is taken: by the ledger, by the Turn, or by nobody."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from nerve.common import faults
from nerve.protocol.errors import NerveError, Unavailable, WrongLedger
from nerve.protocol.values import printable

V = TypeVar("V")

BLAMELESS_DELAY_MS = 2_000
BLAMELESS_DOUBLINGS = 5
SET_BACK_DELAY_MS = 60_000
DELAY_MS_MAX = max(SET_BACK_DELAY_MS, BLAMELESS_DELAY_MS << BLAMELESS_DOUBLINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a raised error is taken: tried again, for good, or not the Turn's fault at all."""

    retryable: bool
    blameless: bool = False


Classify = Callable[[BaseException], Failure]


class NotCommitted(BaseException):
    """The ledger could not take a Step: no fault of the Turn, and nothing that an agent may catch."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def committed(work: Awaitable[V]) -> V:
    """What `work` gives; what the ledger, or a store that it waits for, raises there is `NotCommitted`."""
    try:
        return await work
    except (Unavailable, WrongLedger, faults.InjectedFault) as error:
        raise NotCommitted(error) from error


class CancelFirst(BaseException):
    """The Turn was cancelled while its Run went on: nothing of this step was committed."""


def said(error: Exception) -> str:
    """The text of an error, however hostile, as it may be stored."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be read)"
    kind = "" if isinstance(error, NerveError) else f"{type(error).__name__}: "
    return printable(f"{kind}{text}")
