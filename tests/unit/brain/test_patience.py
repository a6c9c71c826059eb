"""Repeats back off, so that an absent route is not drowned in them when it returns."""

import pytest

from nerve.brain.ledger.inquiries import Patience


@pytest.mark.rule(14)
def test_repeats_double_up_to_their_longest_wait_and_never_overflow() -> None:
    patience = Patience(silence_ms=5_000, first_ms=5_000, most_ms=300_000)
    waits = [patience.after(count) for count in range(9)]
    assert waits == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000]
    assert patience.after(10**9) == 300_000
