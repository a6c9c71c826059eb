"""A Run is one invocation of an agent in one process; its Steps lie between two commits.

Rows are written when a Run or Step ends. The one that is under way stands in its Thread's row (number,
owner, since when), so that whoever releases a dead owner can write it down as LOST.
"""

from collections.abc import Mapping
from enum import StrEnum


class RunState(StrEnum):
    """PARKED waits for results, FINISHED and FAILED ended the invocation, RETRYING failed and will be
    followed by another, HANDED_OVER gave the Thread back, LOST died with its host."""

    PARKED = "PARKED"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    RETRYING = "RETRYING"
    HANDED_OVER = "HANDED_OVER"
    LOST = "LOST"


class StepState(StrEnum):
    """COMPLETED was committed; FAILED raised; LOST died with its host and may have a successor."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    LOST = "LOST"


STEP_OF_RUN: Mapping[RunState, StepState] = {
    RunState.PARKED: StepState.COMPLETED,
    RunState.FINISHED: StepState.COMPLETED,
    RunState.FAILED: StepState.FAILED,
    RunState.RETRYING: StepState.FAILED,
    RunState.HANDED_OVER: StepState.LOST,
    RunState.LOST: StepState.LOST,
}
