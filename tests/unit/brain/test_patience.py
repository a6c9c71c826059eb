"""Repeats back off, so that an absent route is not drowned in them when it returns."""

import pytest

from nerve.brain.ledger.inquiries import Patience
from nerve.brain.schedule.scans import REPEATS_A_SECOND, REPEATS_AT_ONCE, Allowance
from nerve.common.clock import VirtualClock


@pytest.mark.rule(14)
def test_repeats_double_up_to_their_longest_wait_and_never_overflow() -> None:
    patience = Patience(silence_ms=5_000, first_ms=5_000, most_ms=300_000)
    waits = [patience.after(count) for count in range(9)]
    assert waits == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000]
    assert patience.after(10**9) == 300_000


@pytest.mark.rule(14)
def test_what_is_too_much_to_repeat_now_waits_longer_and_not_for_ever() -> None:
    patience = Patience(silence_ms=5_000, first_ms=5_000, most_ms=300_000)
    assert patience.put_off(0) == 320_000
    assert patience.put_off(10**9) == 2_400_000


@pytest.mark.rule(14)
async def test_repeats_are_a_burst_and_then_a_trickle() -> None:
    clock = VirtualClock()
    allowance = Allowance(clock)
    assert allowance.left() == REPEATS_AT_ONCE
    allowance.take(REPEATS_AT_ONCE)
    assert allowance.left() == 0
    await clock.advance(2)
    assert allowance.left() == 2 * REPEATS_A_SECOND
    await clock.advance(10**6)
    assert allowance.left() == REPEATS_AT_ONCE
