"""One table of moves; UNKNOWN is left by reconciliation only; results keep what a tool stated."""

import math
from itertools import product

import pytest

from nerve.protocol.content import ImagePart, StructuredPart, TextPart
from nerve.protocol.errors import ToolFailed, WrongState
from nerve.protocol.execution import (
    EFFECTS,
    MOVES,
    RESULT_BYTES_MAX,
    TERMINAL,
    Effect,
    ExecutionResult,
    ExecutionState,
    can_move,
    check_effect,
    check_move,
    failed_result,
    told,
    value_result,
)
from nerve.protocol.wire import parse_wire

STATES = list(ExecutionState)
OPEN = [state for state in STATES if not state.is_terminal]


@pytest.mark.law(7)
def test_the_table_names_every_state() -> None:
    assert set(MOVES) == set(EFFECTS) == set(STATES)


def test_terminal_states_are_those_that_nothing_ordinary_leaves() -> None:
    left = {s for s, t in product(STATES, STATES) if can_move(s, t)}
    assert set(STATES) - left == TERMINAL
    assert {state for state in STATES if state.is_settled} == TERMINAL - {ExecutionState.UNKNOWN}


@pytest.mark.rule(21)
@pytest.mark.law(7)
def test_only_a_reconciliation_leaves_unknown_and_it_leaves_nothing_else() -> None:
    reconciled = {(s, t) for s, t in product(STATES, STATES) if can_move(s, t, reconciling=True)}
    ends = TERMINAL - {ExecutionState.UNKNOWN}
    assert reconciled == {(ExecutionState.UNKNOWN, end) for end in ends}
    assert not any(can_move(ExecutionState.UNKNOWN, state) for state in STATES)


def test_every_open_state_can_end_and_become_unknown() -> None:
    assert all(can_move(state, ExecutionState.UNKNOWN) for state in OPEN)
    assert all(can_move(state, ExecutionState.CANCELLED) for state in OPEN)


def test_an_execution_that_never_started_cannot_succeed() -> None:
    assert not can_move(ExecutionState.ADMITTED, ExecutionState.SUCCEEDED)


def test_a_refused_move_says_what_to_do() -> None:
    with pytest.raises(WrongState, match="UNKNOWN cannot become SUCCEEDED") as caught:
        check_move(ExecutionState.UNKNOWN, ExecutionState.SUCCEEDED)
    assert "nerve reconcile" in caught.value.next_step
    with pytest.raises(WrongState) as caught:
        check_move(ExecutionState.STARTED, ExecutionState.SUCCEEDED, reconciling=True)
    assert "UNKNOWN" in caught.value.next_step


@pytest.mark.rule(20)
def test_an_outcome_has_only_the_effects_that_it_can_have() -> None:
    check_effect(ExecutionState.SUCCEEDED, Effect.COMPLETED)
    for state, effect in [
        (ExecutionState.SUCCEEDED, Effect.NONE),
        (ExecutionState.UNKNOWN, Effect.COMPLETED),
        (ExecutionState.ADMITTED, Effect.UNCONFIRMED),
    ]:
        with pytest.raises(WrongState):
            check_effect(state, effect)


UNSTORABLE = [math.nan, "\x00", "\ud800", 2**53, object(), b"x", {1: 2}, "x" * RESULT_BYTES_MAX]


@pytest.mark.rule(20)
@pytest.mark.capability("D16.2")
@pytest.mark.parametrize("value", UNSTORABLE, ids=range(len(UNSTORABLE)))
def test_a_result_that_cannot_be_stored_becomes_a_placeholder_with_a_code(value: object) -> None:
    result = value_result(value)
    assert result.placeholder is not None and result.placeholder.startswith("result_")
    assert result.value is None
    assert "could not be stored" in result.text
    assert told(ExecutionState.SUCCEEDED, Effect.COMPLETED, result) == result.text
    assert parse_wire(ExecutionResult, result.to_json(), "result") == result


@pytest.mark.parametrize(
    ("value", "text"),
    [("sunny", "sunny"), (None, "null"), ({"b": 1, "a": [1.0]}, '{"a":[1],"b":1}'), (True, "true")],
)
def test_a_value_is_told_as_text_or_as_canonical_json(value: object, text: str) -> None:
    assert value_result(value).text == text


@pytest.mark.capability("D16.1")
def test_native_content_metadata_and_stated_state_survive_the_wire() -> None:
    image = ImagePart(media_type="image/png", url="https://example.org/a.png")
    result = ExecutionResult(
        content=(TextPart(text="a"), image, StructuredPart(value={"n": None})),
        metadata={"unit": "C", "nothing": None},
        stated="interrupted",
    )
    assert parse_wire(ExecutionResult, result.to_json(), "result") == result
    assert result.text == "a"


@pytest.mark.rule(20)
def test_what_a_model_is_told_names_the_effect_of_every_outcome_but_success() -> None:
    failed = failed_result(ToolFailed("no such city"))
    words = {
        (ExecutionState.FAILED, Effect.NONE): "changed nothing",
        (ExecutionState.FAILED, Effect.UNCONFIRMED): "unconfirmed",
        (ExecutionState.FAILED, Effect.COMPLETED): "took effect",
        (ExecutionState.CANCELLED, Effect.NONE): "changed nothing",
        (ExecutionState.CANCELLED, Effect.COMPLETED): "took effect",
        (ExecutionState.CANCELLED, Effect.UNCONFIRMED): "unconfirmed",
        (ExecutionState.UNKNOWN, Effect.UNCONFIRMED): "unknown",
    }
    pairs = {(s, e) for s in TERMINAL for e in EFFECTS[s]}
    assert pairs - set(words) == {(ExecutionState.SUCCEEDED, Effect.COMPLETED)}
    for (state, effect), word in words.items():
        text = told(state, effect, failed)
        assert word in text and "no such city" in text


def test_braces_in_a_hostile_failure_text_are_only_text() -> None:
    failed = failed_result(ToolFailed("{text} {0} {x!r}"))
    assert "{text} {0} {x!r}" in told(ExecutionState.FAILED, Effect.NONE, failed)


@pytest.mark.report("U105")
def test_the_text_of_a_failure_may_be_hostile_and_is_recorded_all_the_same() -> None:
    hostile = ToolFailed("a\x00b\ud800" + "x" * 10_000, {"raw": float("nan"), "s": "\x00"})
    result = failed_result(hostile, type="a\x00\udfff")
    assert result.failure is not None
    assert result.failure.message.startswith("a\ufffdb\ufffd")
    assert len(result.failure.message) == 4096
    assert parse_wire(ExecutionResult, result.to_json(), "result") == result
