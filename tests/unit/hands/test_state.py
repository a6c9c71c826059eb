"""The pure laws of an execution: what a lost host, a cancel and a reconciliation do to it."""

from dataclasses import replace

import pytest

from nerve.hands.state import (
    ATTEMPTS_MAX,
    FINISHABLE,
    STARTABLE,
    Record,
    cancel,
    lost,
    reconcile,
    stale,
)
from nerve.protocol.errors import WrongState
from nerve.protocol.execution import Effect, ExecutionState

S = ExecutionState
RUNNING = Record(
    id="t.x1",
    state=S.STARTED,
    effect=Effect.UNCONFIRMED,
    attempt=1,
    host="h1",
    token=1,
    epoch=1,
    repeatable=False,
    cancel_requested=False,
)
WAITING = replace(RUNNING, state=S.ADMITTED, effect=Effect.NONE, attempt=0, host=None, token=0)


@pytest.mark.law(4)
def test_a_tool_that_may_have_started_becomes_unknown_when_its_host_is_lost() -> None:
    move = lost(RUNNING)
    assert move is not None
    assert (move.state, move.effect, move.code) == (S.UNKNOWN, Effect.UNCONFIRMED, "host_lost")


@pytest.mark.law(4)
def test_a_repeatable_tool_waits_for_another_start() -> None:
    move = lost(replace(RUNNING, repeatable=True))
    assert move is not None and move.state is S.RECOVERING


@pytest.mark.report("U46")
def test_repeated_starts_are_bounded_and_then_unknown() -> None:
    move = lost(replace(RUNNING, repeatable=True, attempt=ATTEMPTS_MAX))
    assert move is not None and (move.state, move.code) == (S.UNKNOWN, "attempts_exhausted")


def test_a_lost_repeatable_execution_that_was_cancelled_is_not_started_again() -> None:
    move = lost(replace(RUNNING, repeatable=True, cancel_requested=True))
    assert move is not None and (move.state, move.effect) == (S.CANCELLED, Effect.UNCONFIRMED)


@pytest.mark.parametrize("state", [S.ADMITTED, S.SUCCEEDED, S.FAILED, S.CANCELLED, S.UNKNOWN])
def test_a_lost_host_changes_nothing_that_did_not_run(state: ExecutionState) -> None:
    assert lost(replace(RUNNING, state=state)) is None


@pytest.mark.rule(12)
def test_what_an_older_epoch_admitted_may_have_started_since_and_is_not_started() -> None:
    move = stale(WAITING, epoch=2, repeatable=False)
    assert move is not None and (move.state, move.code) == (S.UNKNOWN, "ledger_restored")
    assert stale(WAITING, epoch=1, repeatable=False) is None
    assert stale(WAITING, epoch=2, repeatable=True) is None


@pytest.mark.capability("D6.2")
@pytest.mark.law(11)
def test_cancel_is_confirmed_before_a_start_and_only_requested_after_it() -> None:
    before, after = cancel(WAITING), cancel(RUNNING)
    assert before.move is not None and before.move.state is S.CANCELLED
    assert before.move.effect is Effect.NONE
    assert (after.move, after.requested) == (None, True)


def test_a_second_cancel_and_one_after_the_end_change_nothing() -> None:
    again = cancel(replace(RUNNING, cancel_requested=True))
    late = cancel(replace(RUNNING, state=S.SUCCEEDED))
    assert (again.move, again.requested, late.move, late.requested) == (None, False, None, False)


def test_cancelling_between_two_attempts_says_that_the_effect_is_unconfirmed() -> None:
    between = replace(RUNNING, state=S.RECOVERING, host=None, repeatable=True)
    move = cancel(between).move
    assert move is not None and (move.state, move.effect) == (S.CANCELLED, Effect.UNCONFIRMED)


@pytest.mark.capability("D8.3")
@pytest.mark.parametrize("state", [state for state in S if state is not S.UNKNOWN])
def test_only_unknown_can_be_reconciled(state: ExecutionState) -> None:
    with pytest.raises(WrongState, match="cannot be reconciled"):
        reconcile(replace(RUNNING, state=state), S.SUCCEEDED, Effect.COMPLETED)


@pytest.mark.parametrize("state", [S.UNKNOWN, S.STARTED, S.ADMITTED])
def test_a_reconciliation_ends_in_a_settled_state(state: ExecutionState) -> None:
    with pytest.raises(WrongState):
        reconcile(replace(RUNNING, state=S.UNKNOWN), state, Effect.UNCONFIRMED)


def test_success_without_an_effect_is_no_outcome() -> None:
    with pytest.raises(WrongState, match="effect"):
        reconcile(replace(RUNNING, state=S.UNKNOWN), S.SUCCEEDED, Effect.NONE)


@pytest.mark.law(7)
def test_what_may_start_and_end_follows_from_the_one_table() -> None:
    assert FINISHABLE == {S.STARTED, S.RECOVERING}
    assert STARTABLE == {S.ADMITTED, S.RECOVERING}
