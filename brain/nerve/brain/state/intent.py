"""What a Turn wants done outside itself: admitted with the checkpoint that asked for it.

An intent is OPEN until a terminal result was received, RECEIVED until a checkpoint contains that
result, then APPLIED. An UNKNOWN outcome leaves it OPEN: only reconciliation closes it.
"""

from collections.abc import Mapping
from enum import StrEnum


class IntentKind(StrEnum):
    """Who answers: a Hands pool, this Brain, a child Turn, a person (twice), or a time or signal."""

    REMOTE = "remote"
    LOCAL = "local"
    DELEGATION = "delegation"
    MANUAL = "manual"
    APPROVAL = "approval"
    CONDITION = "condition"


class IntentState(StrEnum):
    OPEN = "OPEN"
    RECEIVED = "RECEIVED"
    APPLIED = "APPLIED"


TRANSITIONS: Mapping[IntentState, frozenset[IntentState]] = {
    IntentState.OPEN: frozenset({IntentState.RECEIVED}),
    IntentState.RECEIVED: frozenset({IntentState.APPLIED}),
    IntentState.APPLIED: frozenset(),
}
