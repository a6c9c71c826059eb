"""Both sides give one verdict about arguments, and the answer tells a model what to mend."""

from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from nerve.protocol.arguments import check_arguments
from nerve.protocol.canonical import check_value
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import InvalidArguments


class Place(BaseModel):
    title: Annotated[str, Field(pattern="^[a-z]+$", max_length=5)]
    floor: Annotated[int, Field(ge=0, lt=10)] = 0
    inside: "Place | None" = None


tools = Catalog()


@tools.tool
def visit(
    place: Place,
    mode: Literal["walk", "drive"],
    seats: Annotated[list[int], Field(min_length=1, max_length=2)],
    weight: float | None = None,
    tags: dict[str, bool] | None = None,
    pair: tuple[int, str] = (1, "a"),
    by: int | str = 1,
) -> None:
    """Visit."""


GOOD: dict[str, Any] = {"place": {"title": "hall"}, "mode": "walk", "seats": [1]}
SCHEMA: dict[str, Any] = dict(tools.get("visit").input_schema)

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"place": 3}, "/place", "expected an object, got an integer 3"),
    ({"place": {}}, "/place/title", "required and missing"),
    ({"place": {"title": "Hall"}}, "/place/title", "that matches ^[a-z]+$"),
    ({"place": {"title": "toolong"}}, "/place/title", "at most 5 characters, got 7"),
    ({"place": {"title": "a", "floor": 10}}, "/place/floor", "less than 10, got 10"),
    ({"place": {"title": "a", "floor": -1}}, "/place/floor", "at least 0, got -1"),
    ({"place": {"title": "a", "inside": {"title": 1}}}, "/place/inside/title", "expected a string"),
    ({"mode": "fly"}, "/mode", 'one of "walk", "drive", got "fly"'),
    ({"seats": []}, "/seats", "at least 1 items, got 0"),
    ({"seats": [1, 2, 3]}, "/seats", "at most 2 items, got 3"),
    ({"seats": [True]}, "/seats/0", "expected an integer, got a boolean true"),
    ({"seats": "1"}, "/seats", 'expected an array, got a string "1"'),
    ({"weight": "heavy"}, "/weight", "expected a number"),
    ({"tags": {"a": 1}}, "/tags/a", "expected a boolean"),
    ({"pair": [1]}, "/pair", "at least 2 items, got 1"),
    ({"pair": ["a", 1]}, "/pair/0", "expected an integer"),
    ({"by": None}, "/by", "expected an integer, got null"),
    ({"sets": 1}, "/sets", "unknown field; did you mean 'seats'?"),
    ({"zzzzz": 1}, "/zzzzz", "unknown field"),
]


@pytest.mark.parametrize(("change", "pointer", "text"), CASES, ids=[case[1] for case in CASES])
def test_each_fault_is_named_with_its_field_and_its_mend(
    change: dict[str, Any], pointer: str, text: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        tools.get("visit").check_arguments(GOOD | change)
    problems = {each["field"]: each["problem"] for each in caught.value.details["problems"]}
    assert text in problems[pointer]
    assert "visit" in caught.value.message
    assert "required" in caught.value.next_step


def test_arguments_that_fit_come_back_as_they_are() -> None:
    full: dict[str, Any] = GOOD | {"weight": 1, "tags": {"a": True}, "pair": [2, "b"], "by": "x"}
    assert tools.check_arguments("visit", full) is full


@pytest.mark.parametrize("value", [None, [], "text", 3, True])
def test_arguments_are_an_object(value: Any) -> None:
    with pytest.raises(InvalidArguments, match="expected an object"):
        check_arguments("visit", SCHEMA, value)


def test_only_the_first_faults_are_told_and_long_values_are_cut() -> None:
    many = {f"unknown{number}": number for number in range(100)}
    with pytest.raises(InvalidArguments) as caught:
        check_arguments("visit", SCHEMA, GOOD | many)
    assert len(caught.value.details["problems"]) == 8
    with pytest.raises(InvalidArguments) as caught:
        check_arguments("visit", SCHEMA, GOOD | {"mode": "x" * 100_000})
    assert len(str(caught.value)) < 4000


LEAVES = st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from(["a", "walk", "Z", ""])
FIELDS = st.sampled_from(["place", "mode", "seats", "weight", "tags", "pair", "by", "title", "x"])
JSON = st.recursive(
    LEAVES | st.floats(-2, 2).filter(lambda number: str(number) != "-0.0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)


def is_valid(schema: dict[str, Any], value: Any) -> bool:
    oracle: Any = jsonschema.Draft202012Validator(schema)
    return bool(oracle.is_valid(value))


def accepts(value: Any) -> bool:
    try:
        check_arguments("visit", SCHEMA, value)
    except InvalidArguments as error:
        str(error).encode()
        return False
    return True


@given(st.dictionaries(FIELDS, JSON, max_size=3))
def test_the_verdict_is_that_of_a_full_schema_validator_and_of_the_function(
    change: dict[str, Any],
) -> None:
    value = check_value({**GOOD, **change})
    assert isinstance(value, dict)
    expected = is_valid(SCHEMA, value)
    assert accepts(value) == expected
    try:
        tools.tool_function("visit").arguments("visit", value)
    except InvalidArguments:
        assert not expected
    else:
        assert expected


HAND_MADE: list[tuple[dict[str, Any], Any, bool]] = [
    ({"type": ["string", "null"]}, None, True),
    ({"type": ["string", "null"]}, 1, False),
    ({"const": 1}, True, False),
    ({"const": 1}, 1, True),
    ({"enum": [0, "a"]}, False, False),
    ({"multipleOf": 5}, 10, True),
    ({"multipleOf": 5}, 11, False),
    ({"exclusiveMinimum": 1}, 1, False),
    ({"uniqueItems": True}, [1, 1], False),
    ({"uniqueItems": True}, [1, True], True),
    ({"allOf": [{"minLength": 1}, {"maxLength": 2}]}, "abc", False),
    ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, 1.5, False),
    ({"minProperties": 1}, {}, False),
    ({"additionalProperties": {"type": "string"}}, {"a": 1}, False),
    ({"$ref": "#/$defs/a~1b"}, 1, False),
    ({"somethingElse": 1}, 1, True),
]


@pytest.mark.parametrize(("schema", "value", "fits"), HAND_MADE, ids=range(len(HAND_MADE)))
def test_hand_made_schemas_are_read_as_a_full_validator_reads_them(
    schema: dict[str, Any], value: Any, fits: bool
) -> None:
    root = {"$defs": {"a/b": {"type": "string"}}, "properties": {"v": schema}}
    assert is_valid(root, {"v": value}) == fits
    try:
        check_arguments("t", root, {"v": value})
        assert fits
    except InvalidArguments:
        assert not fits
