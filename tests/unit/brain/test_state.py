"""Laws of state without I/O: transition tables, budgets and the chain of checkpoints."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nerve.brain.state import intent, session, thread, turn
from nerve.brain.state.checkpoint import GENESIS, chained
from nerve.brain.state.recovery import Exhausted, RecoveryPolicy, Retry, after_failure
from nerve.brain.state.turn import Settle, TurnPhase, settled_as

TABLES: list[Mapping[Any, frozenset[Any]]] = [
    intent.TRANSITIONS,
    session.TRANSITIONS,
    thread.TRANSITIONS,
    turn.TRANSITIONS,
]


@pytest.mark.law(7)
@pytest.mark.parametrize("table", TABLES)
def test_every_state_has_a_row_and_every_move_leads_to_a_state(
    table: Mapping[Any, frozenset[Any]],
) -> None:
    states: list[Any] = list(table)
    kind: Any = states[0].__class__
    assert states == list(kind)
    assert all(target in table for targets in table.values() for target in targets)


@pytest.mark.law(7)
def test_what_is_terminal_stays_and_is_reachable() -> None:
    assert all(not turn.TRANSITIONS[phase] for phase in turn.TERMINAL)
    reached = {target for targets in turn.TRANSITIONS.values() for target in targets}
    assert turn.TERMINAL <= reached
    assert {settled_as(reason) for reason in Settle} == {TurnPhase.CANCELLED, TurnPhase.FAILED}


@pytest.mark.capability("C5.3")
def test_the_default_budget_is_three_more_tries_from_one_second_doubling_to_thirty() -> None:
    policy = RecoveryPolicy()
    waits: list[int] = []
    count = 0
    while isinstance(
        verdict := after_failure(policy, count=count, retryable=True, now=1000), Retry
    ):
        waits.append(verdict.at - 1000)
        count = verdict.count
    assert waits == [1000, 2000, 4000]
    long = RecoveryPolicy(retries=10)
    last = after_failure(long, count=9, retryable=True, now=0)
    assert last == Retry(count=10, at=30_000)


@given(
    count=st.integers(0, 200),
    retries=st.integers(0, 100),
    first=st.floats(0.001, 100),
    most=st.floats(0.001, 1000),
    now=st.integers(0, 2**41),
)
def test_a_budget_is_finite_and_its_waits_are_bounded(
    count: int, retries: int, first: float, most: float, now: int
) -> None:
    policy = RecoveryPolicy(retries=retries, first_seconds=first, most_seconds=most)
    verdict = after_failure(policy, count=count, retryable=True, now=now)
    assert verdict.count == count + 1
    assert isinstance(verdict, Exhausted) == (count + 1 > retries)
    if isinstance(verdict, Retry):
        assert now <= verdict.at <= now + most * 1000
    assert isinstance(after_failure(policy, count=count, retryable=False, now=now), Exhausted)


@pytest.mark.rule(23)
@given(parts=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), max_size=8))
def test_a_chain_names_all_of_its_parts_and_their_order(parts: list[tuple[bytes, bytes]]) -> None:
    def digest(of: list[tuple[bytes, bytes]]) -> str:
        made = GENESIS
        for entries, state in of:
            made = chained(made, entries, state)
        return made

    whole = digest(parts)
    assert digest(parts) == whole
    for n, (entries, state) in enumerate(parts):
        assert digest(parts[:n] + parts[n + 1 :]) != whole
        moved = [*parts[:n], (entries + state[:1], state[1:]), *parts[n + 1 :]]
        assert moved == parts or digest(moved) != whole
