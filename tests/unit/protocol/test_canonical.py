"""Strict reading refuses what cannot be carried exactly; writing is RFC 8785 on every path."""

import json
import math
import sys
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from nerve.protocol import canonical
from nerve.protocol.canonical import canonical_bytes, check_value, digest, read_strict
from nerve.protocol.errors import InvalidJSON, JSONFault, TooLarge

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: not 2**53 - 1 < abs(number) < 1e21 and str(number) != "-0.0"
)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
        max_leaves=12,
    )


VALUES = trees(st.none() | st.booleans() | INTEGERS | FLOATS | TEXT)


def written_without_orjson(value: Any) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "orjson", None)
        return canonical_bytes(value)


@given(VALUES)
def test_every_writer_gives_the_bytes_of_the_reference(value: Any) -> None:
    settled = check_value(value)
    assert canonical_bytes(value) == rfc8785.dumps(settled)
    assert written_without_orjson(value) == rfc8785.dumps(settled)


@given(VALUES)
def test_what_was_written_reads_back_equal_on_both_readers(value: Any) -> None:
    raw = canonical_bytes(value)
    assert read_strict(raw) == check_value(value)
    assert canonical_bytes(read_strict(raw)) == raw


@given(VALUES)
def test_the_fast_reader_agrees_or_declines(value: Any) -> None:
    raw = canonical_bytes({"value": value})
    try:
        read = canonical.read_canonical(raw)
    except ValueError:
        return
    assert read == read_strict(raw)


@given(st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_the_fast_reader_accepts_nothing_that_the_strict_one_refuses(raw: bytes) -> None:
    try:
        read = canonical.read_canonical(raw)
    except ValueError:
        return
    assert read == read_strict(raw)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (1e21, "1e+21"),
        (1e-6, "0.000001"),
        (1e-7, "1e-7"),
        (1.5e300, "1.5e+300"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (-2.5, "-2.5"),
        (333333333.3333333, "333333333.3333333"),
        (4.0, "4"),
        (123456789.0, "123456789"),
    ],
)
def test_numbers_are_spelled_as_ecmascript_does(number: float, text: str) -> None:
    assert canonical_bytes([number]) == f"[{text}]".encode()
    assert written_without_orjson([number]) == f"[{text}]".encode()


def test_keys_are_ordered_as_utf_16() -> None:
    value = {"\ufb33": 1, "\U0001f600": 2, "a": 3}
    assert list(json.loads(canonical_bytes(value))) == ["a", "\U0001f600", "\ufb33"]


REFUSED = [
    ('{"a":1,"a":2}', JSONFault.DUPLICATE_KEY),
    ('{"a":1,"\\u0061":2}', JSONFault.DUPLICATE_KEY),
    ('{"x":[{"a":1,"a":1}]}', JSONFault.DUPLICATE_KEY),
    ("1 2", JSONFault.SECOND_ROOT),
    ("{}{}", JSONFault.SECOND_ROOT),
    ("NaN", JSONFault.SYNTAX),
    ("-Infinity", JSONFault.SYNTAX),
    ("1e400", JSONFault.LOSSY_NUMBER),
    ("-1e400", JSONFault.LOSSY_NUMBER),
    ("1e-400", JSONFault.LOSSY_NUMBER),
    ("-0.0", JSONFault.LOSSY_NUMBER),
    ("9007199254740992", JSONFault.LOSSY_NUMBER),
    ("9007199254740993", JSONFault.LOSSY_NUMBER),
    ("123456789012345678901234567890", JSONFault.LOSSY_NUMBER),
    ("9" * 4000, JSONFault.LOSSY_NUMBER),
    ("9" * 9000, JSONFault.LOSSY_NUMBER),
    ("0." + "1" * 9000, JSONFault.LOSSY_NUMBER),
    ("1e999999999", JSONFault.LOSSY_NUMBER),
    ("1e-999999999", JSONFault.LOSSY_NUMBER),
    ("0.1000000000000000055", JSONFault.LOSSY_NUMBER),
    ("1e20", JSONFault.LOSSY_NUMBER),
    ('"\\u0000"', JSONFault.NUL),
    ('{"\\u0000":1}', JSONFault.NUL),
    ('"\\ud800"', JSONFault.SURROGATE),
    ('"\\udc00"', JSONFault.SURROGATE),
    ("[" * 65 + "]" * 65, JSONFault.DEPTH),
    ("[" * 5000 + "]" * 5000, JSONFault.DEPTH),
    ("", JSONFault.SYNTAX),
    ('{"a":', JSONFault.SYNTAX),
    ("\ufeff1", JSONFault.SYNTAX),
    ("'a'", JSONFault.SYNTAX),
    ('"\x01"', JSONFault.SYNTAX),
]


@pytest.mark.capability("E8.2")
@pytest.mark.report("U59")
@pytest.mark.parametrize(("text", "reason"), REFUSED, ids=[ascii(text)[:30] for text, _ in REFUSED])
def test_json_that_changes_on_its_way_is_refused_with_its_reason(
    text: str, reason: JSONFault
) -> None:
    with pytest.raises(InvalidJSON) as caught:
        read_strict(text)
    assert caught.value.reason is reason
    assert caught.value.next_step


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    with pytest.raises(InvalidJSON) as caught:
        read_strict(b'"\xff"')
    assert caught.value.reason is JSONFault.ENCODING


def test_a_lone_surrogate_in_the_text_itself_is_refused() -> None:
    with pytest.raises(InvalidJSON) as caught:
        read_strict('"\ud800"')
    assert caught.value.reason is JSONFault.SURROGATE


@pytest.mark.parametrize("text", ["1.0", "1e0", "10e-1", "1.00"])
def test_integral_numbers_become_integers(text: str) -> None:
    read = read_strict(text)
    assert read == 1
    assert type(read) is int


@pytest.mark.parametrize("text", ["0.1", "1e-7", "6.02214076e23", "0.10", "1E5", "100e-2"])
def test_a_number_that_denotes_the_same_decimal_is_read(text: str) -> None:
    assert read_strict(text) == float(text)


def test_an_error_names_the_place_by_its_json_pointer() -> None:
    with pytest.raises(InvalidJSON) as caught:
        read_strict('{"a":[1,{"b/c":9007199254740993}]}', where="body")
    assert caught.value.where == "body/a/1/b~1c"


def test_the_limit_of_size_is_named() -> None:
    with pytest.raises(TooLarge, match="12 bytes; the limit is 10"):
        read_strict('"0123456789"', bytes_max=10)


def test_depth_up_to_the_limit_is_read() -> None:
    assert read_strict("[" * 64 + "]" * 64)


cyclic: list[Any] = []
cyclic.append({"again": cyclic})
deep: list[Any] = []
for _ in range(200):
    deep = [deep]

UNSTORABLE: list[tuple[Any, JSONFault, str]] = [
    (float("nan"), JSONFault.LOSSY_NUMBER, "/"),
    ([math.inf], JSONFault.LOSSY_NUMBER, "/0"),
    ([-math.inf], JSONFault.LOSSY_NUMBER, "/0"),
    ({"x": -0.0}, JSONFault.LOSSY_NUMBER, "/x"),
    ({"x": [2**53]}, JSONFault.LOSSY_NUMBER, "/x/0"),
    (10**29, JSONFault.LOSSY_NUMBER, "/"),
    (10**5000, JSONFault.LOSSY_NUMBER, "/"),
    (1e20, JSONFault.LOSSY_NUMBER, "/"),
    ({"x": "a\x00"}, JSONFault.NUL, "/x"),
    ({"a\x00": 1}, JSONFault.NUL, "/a\ufffd"),
    ({"x": "\ud800"}, JSONFault.SURROGATE, "/x"),
    ({"\udfff": 1}, JSONFault.SURROGATE, "/\ufffd"),
    ({1: 2}, JSONFault.KEY, "/1"),
    ({None: 2}, JSONFault.KEY, "/NoneType"),
    ({10**5000: 2}, JSONFault.KEY, "/int"),
    ([object()], JSONFault.TYPE, "/0"),
    ([b"bytes"], JSONFault.TYPE, "/0"),
    ({"s": {1, 2}}, JSONFault.TYPE, "/s"),
]


@pytest.mark.report("U107")
@pytest.mark.law(10)
@pytest.mark.parametrize(
    ("value", "reason", "where"), UNSTORABLE, ids=[str(number) for number in range(len(UNSTORABLE))]
)
def test_a_python_value_that_json_cannot_hold_is_refused_where_it_stands(
    value: Any, reason: JSONFault, where: str
) -> None:
    with pytest.raises(InvalidJSON) as caught:
        check_value(value)
    assert (caught.value.reason, caught.value.where) == (reason, where)
    str(caught.value).encode()
    with pytest.raises(InvalidJSON):
        canonical_bytes({"inside": value})


@pytest.mark.parametrize(("value", "reason"), [(cyclic, JSONFault.CYCLE), (deep, JSONFault.DEPTH)])
def test_endless_and_over_deep_values_are_told_apart(value: Any, reason: JSONFault) -> None:
    with pytest.raises(InvalidJSON) as caught:
        check_value(value)
    assert caught.value.reason is reason
    if value is cyclic:
        with pytest.raises(InvalidJSON):
            canonical_bytes(value)


def test_tuples_and_integral_floats_are_settled_and_the_value_is_copied() -> None:
    value: dict[str, Any] = {"a": (1.0, 2), "b": []}
    checked = check_value(value)
    assert checked == {"a": [1, 2], "b": []}
    assert isinstance(checked, dict) and checked["b"] is not value["b"]


def test_a_digest_names_bytes_or_the_canonical_form() -> None:
    assert digest({"b": 1, "a": 2}) == digest(b'{"a":2,"b":1}')
    assert (
        digest(b"")
        == "sha256:" + "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_written_as_the_reference_does_or_refused(number: float) -> None:
    try:
        written = canonical_bytes(number)
    except InvalidJSON:
        assert 2**53 - 1 < abs(number) < 1e21 or str(number) == "-0.0"
        return
    assert written == rfc8785.dumps(number)


def test_the_recursion_of_python_is_never_the_limit() -> None:
    text = "[" * 100_000
    with pytest.raises(InvalidJSON):
        read_strict(text)
    assert sys.getrecursionlimit() < 100_000
