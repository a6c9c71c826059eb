"""What a ledger says of a command that it sees for the first time, and that may once have run."""

import pytest

from nerve.hands.state.record import doubtful
from nerve.protocol.execution import ExecutionState

BEFORE, BEGAN, AFTER = 1, 2, 3


@pytest.mark.rule(12)
@pytest.mark.law(4)
@pytest.mark.parametrize(
    ("issued_at", "known", "epoch", "unknown"),
    [
        (BEFORE, None, 1, False),  # a Brain that was there first
        (BEFORE, None, 2, True),  # the first command went to a ledger that is lost
        (BEFORE, False, 1, True),
        (BEFORE, False, 2, True),
        (BEFORE, True, 2, False),
        (AFTER, None, 2, False),
        (AFTER, False, 2, False),
    ],
)
def test_only_what_an_earlier_life_of_the_ledger_may_have_run_is_unknown(
    issued_at: int, known: bool | None, epoch: int, unknown: bool
) -> None:
    def move(*, repeatable: bool) -> ExecutionState | None:
        found = doubtful(
            began_at=BEGAN, epoch=epoch, issued_at=issued_at, known=known, repeatable=repeatable
        )
        return None if found is None else found.state

    assert move(repeatable=False) is (ExecutionState.UNKNOWN if unknown else None)
    assert move(repeatable=True) is None
