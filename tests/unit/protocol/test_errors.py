"""Every error has one stable code, and says what was wrong, where, and what to do next."""

import pickle
from itertools import pairwise

import pytest

from nerve.protocol import errors
from nerve.protocol.errors import (
    ERRORS,
    BadInput,
    Conflict,
    Incompatible,
    InvalidJSON,
    JSONFault,
    NerveError,
    NotFound,
    Timeout,
    ToolFailed,
    Unavailable,
    UnknownTurn,
    rebuild,
)

CODES = {
    *("bad_input", "invalid_name", "invalid_json", "too_large", "unknown_field"),
    *("invalid_arguments", "conflict", "request_conflict", "binding_mismatch", "digest_mismatch"),
    *("fenced", "wrong_state", "not_found", "unknown_agent", "unknown_turn", "unknown_session"),
    *("unknown_thread", "unknown_execution", "unknown_tool", "timeout", "unavailable"),
    *("ledger_unavailable", "broker_unavailable", "overloaded", "disk_full", "incompatible"),
    *("protocol_version", "schema_too_new", "wrong_ledger", "definition_missing", "refused"),
    *("unauthorized", "damaged", "tool_failed", "internal"),
}


def test_the_codes_are_exactly_those_once_given() -> None:
    assert set(ERRORS) == CODES


def test_every_class_of_the_tree_is_named_in_its_picture() -> None:
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in ERRORS.values() if kind.__name__ not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("group", "exit_code"),
    [
        (BadInput, 2),
        (Conflict, 3),
        (NotFound, 4),
        (Timeout, 5),
        (Unavailable, 6),
        (Incompatible, 3),
    ],
)
def test_a_group_shares_one_exit_code(group: type[NerveError], exit_code: int) -> None:
    members = [kind for kind in ERRORS.values() if issubclass(kind, group)]
    assert {kind.exit_code for kind in members} == {exit_code}


def test_a_text_names_fault_place_and_next_step_in_this_order() -> None:
    error = UnknownTurn("no turn t1", where="acme/s-1", next_step="Use nerve ls")
    assert str(error) == "no turn t1 (at acme/s-1). Use nerve ls"
    places = [str(error).index(part) for part in ("no turn", "acme", "nerve ls")]
    assert all(left < right for left, right in pairwise(places))


EXAMPLES = [
    UnknownTurn("no turn", where="x", next_step="look"),
    InvalidJSON("bad", reason=JSONFault.NUL, where="/a"),
    Timeout("waited", identities={"turn": "t1", "session": "acme/s"}),
    ToolFailed("no such city", {"city": "Atlantis"}),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=[error.code for error in EXAMPLES])
def test_an_error_survives_json_and_pickling(error: NerveError) -> None:
    for copy in (rebuild(error.to_json()), pickle.loads(pickle.dumps(error))):
        assert type(copy) is type(error)
        assert (copy.to_json(), str(copy)) == (error.to_json(), str(error))


@pytest.mark.capability("A5.2")
def test_a_timeout_carries_the_identities_to_ask_again_with() -> None:
    error = Timeout("the turn goes on", identities={"turn": "t1"})
    copy = rebuild(error.to_json())
    assert isinstance(copy, Timeout)
    assert copy.identities == {"turn": "t1"}


def test_a_code_of_a_newer_build_is_kept_readable() -> None:
    error = rebuild({"code": "from_the_future", "message": "odd"})
    assert (type(error), str(error)) == (NerveError, "from_the_future: odd")
