"""A Session or Thread is open until it is closed, and closing needs that nothing is unfinished."""

from collections.abc import Mapping
from enum import StrEnum


class OpenState(StrEnum):
    """OPEN admits Turns. CLOSED is final."""

    OPEN = "OPEN"
    CLOSED = "CLOSED"


TRANSITIONS: Mapping[OpenState, frozenset[OpenState]] = {
    OpenState.OPEN: frozenset({OpenState.CLOSED}),
    OpenState.CLOSED: frozenset(),
}
