"""Identities are spelled in one way, sort by time, and are refused before anything is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nerve.protocol.errors import InvalidName, NerveError
from nerve.protocol.identity import (
    SessionKey,
    ThreadKey,
    check_execution_id,
    check_name,
    check_request_id,
    check_route,
    check_tool_name,
    check_turn_id,
    child_execution_id,
    execution_id,
    new_turn_id,
    new_uuid7,
    run_id,
    step_id,
    turn_of,
)

NOW = 1_700_000_000_000


@given(st.integers(0, 2**48 - 2), st.binary(min_size=10, max_size=10))
def test_turn_ids_are_well_formed_and_sort_by_time(now: int, noise: bytes) -> None:
    earlier = new_turn_id(now, lambda size: noise[:size])
    later = new_turn_id(now + 1, lambda size: bytes(size))
    assert check_turn_id(earlier) == earlier
    assert len(earlier) == 27
    assert earlier < later


def test_uuids_say_that_they_are_of_version_7() -> None:
    made = new_uuid7(NOW)
    assert (made[14], made[19] in "89ab", len(made)) == ("7", True, 36)


def test_randomness_is_an_input() -> None:
    assert new_turn_id(NOW, bytes) == new_turn_id(NOW, bytes)


def test_derived_ids_lead_back_to_their_turn() -> None:
    turn = new_turn_id(NOW)
    run = run_id(turn, 2)
    step = step_id(run, 3)
    execution = execution_id(turn, 4)
    assert (run, step, execution) == (f"{turn}.r2", f"{turn}.r2.s3", f"{turn}.x4")
    assert {turn_of(each) for each in (run, step, execution)} == {turn}
    assert check_execution_id(execution) == execution
    child = child_execution_id(execution, 1)
    assert check_execution_id(child) == child


def test_session_and_thread_keys_are_read_back_from_their_text() -> None:
    key = SessionKey("acme", "s-1")
    assert (key.id, key.thread().id) == ("acme/s-1", "acme/s-1/main")
    assert SessionKey.parse("acme/s-1") == key
    assert ThreadKey.parse("acme/s-1/main") == key.thread()
    assert key.thread("side").session_key == key
    for text in ("acme", "acme/s/t/x", "acme//t", "/", ""):
        with pytest.raises(InvalidName):
            ThreadKey.parse(text)


BAD_NAMES = ["", "/", "a/b", "a b", ".a", "-a", "a\n", "a\x00", "\ud800", "ü", "a" * 129, "a\u200b"]


@pytest.mark.report("U104")
@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
def test_a_bad_name_is_refused_with_a_printable_text_that_says_the_rule(name: str) -> None:
    with pytest.raises(InvalidName, match="namespace") as caught:
        SessionKey(name, "s")
    assert "1 to 128" in caught.value.next_step
    str(caught.value).encode()
    assert "\x00" not in str(caught.value)
    for check in (check_name, check_route, check_tool_name, check_turn_id, check_execution_id):
        with pytest.raises(InvalidName):
            check(name, "name")


def test_names_up_to_their_limits_pass() -> None:
    assert check_name("A" * 128, "namespace")
    assert check_name("a.b_c:d@e+f=g-h", "session")
    assert check_route("a" * 64) == "a" * 64
    assert check_tool_name("_private-Tool9")
    for route in ("A", "a.b", "a" * 65):
        with pytest.raises(InvalidName):
            check_route(route)


@pytest.mark.parametrize("text", ["r1", "a b", "größe 🌌", "x" * 256, "/../"])
def test_a_request_id_is_any_printable_text(text: str) -> None:
    assert check_request_id(text) == text


@pytest.mark.parametrize("text", ["", "x" * 257, "\x00", "a\nb", "\ud800", "\x7f", "\u0085"])
def test_a_request_id_that_cannot_be_stored_or_shown_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="request id"):
        check_request_id(text)


@given(st.text(max_size=200))
def test_any_text_is_accepted_or_refused_with_an_error_of_ours(text: str) -> None:
    for check in (SessionKey.parse, ThreadKey.parse, check_request_id, check_turn_id, turn_of):
        try:
            check(text)
        except NerveError as error:
            str(error).encode()
