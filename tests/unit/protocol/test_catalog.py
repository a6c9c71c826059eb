"""Bindings come from typed functions, travel as JSON without code, and never change in silence."""

import datetime
import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import (
    BadInput,
    BindingMismatch,
    InvalidArguments,
    InvalidName,
    NerveError,
    UnknownTool,
)
from nerve.protocol.identity import Origin
from nerve.protocol.signature import ToolContext


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    title: str
    floor: int = 3


class Options(TypedDict, total=False):
    quick: bool


async def forecast(city: str) -> str:
    """Tomorrow's weather in a city."""
    return f"sunny in {city}"


def paint(
    context: ToolContext,
    place: Place,
    when: datetime.date,
    colour: Colour = Colour.RED,
    sizes: Annotated[list[int], Field(min_length=1, description="in cm")] = [1],  # noqa: B006
    note: int | str | None = None,
    mode: Literal["a", "b"] = "a",
    model_config: float = 1.0,
    options: Options | None = None,
) -> str:
    """Paint."""
    return f"{place.title} {when.year} {colour.name} {sizes} {note} {mode} {model_config}"


class Context(ToolContext):
    execution = "t01hf7yat00fhxr0thxk8y2pnqm.x1"
    attempt = 1
    origin = Origin(run="t.r1", step="t.r1.s1")

    async def write(self, data: bytes | str) -> None: ...

    @property
    def cancel_requested(self) -> bool:
        return False


def catalog() -> Catalog:
    tools = Catalog(route="hands")
    tools.tool(forecast)
    tools.tool(version="2", failures=(ValueError,), timeout_seconds=0.5, concurrency=2)(paint)
    return tools


def test_a_bare_decorator_gives_back_the_function_and_adds_its_binding() -> None:
    tools = Catalog()

    @tools.tool
    def double(number: int) -> int:
        """Twice."""
        return 2 * number

    assert double(2) == 4
    binding = tools.get("double")
    assert (binding.name, binding.version, binding.route) == ("double", "1", "hands")
    assert binding.description == "Twice."
    assert binding.input_schema == {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
        "additionalProperties": False,
    }
    assert tools.function("double") is double


def test_options_reach_the_binding() -> None:
    tools = Catalog(route="a")
    tools.tool(
        name="other",
        version="7",
        route="b",
        description="Another.",
        idempotent_start=True,
        queryable=True,
        cancellable=True,
        output=False,
        failures=(ValueError, KeyError),
        timeout_seconds=1.5,
        concurrency=3,
        target={"server": "s", "credential": "env:TOKEN"},
    )(forecast)
    binding = tools.get("other")
    assert (binding.version, binding.route, binding.description) == ("7", "b", "Another.")
    assert all(
        (binding.powers.idempotent_start, binding.powers.queryable, binding.powers.cancellable)
    )
    assert not binding.powers.output
    assert binding.failures == ("builtins.KeyError", "builtins.ValueError")
    assert (binding.timeout_ms, binding.concurrency) == (1500, 3)
    assert binding.target == {"server": "s", "credential": "env:TOKEN"}
    assert tools.routes() == ("b",)
    assert tools.bindings("a") == ()


@pytest.mark.capability("D1.2")
def test_an_exported_catalog_is_the_same_catalog_without_code() -> None:
    tools = catalog()
    loaded = Catalog.load(tools.export_bytes())
    assert loaded.digest == tools.digest
    assert loaded.bindings() == tools.bindings()
    assert loaded.export_bytes() == tools.export_bytes()
    assert Catalog.load(tools.export()).get("paint") == tools.get("paint")
    with pytest.raises(UnknownTool, match="no function in this process"):
        loaded.function("forecast")


@pytest.mark.parametrize(
    "raw", [b"{}", b'{"bindings":[],"extra":1}', b"[]", b"{", b'{"a":1,"a":1}']
)
def test_a_damaged_export_is_refused(raw: bytes) -> None:
    with pytest.raises(NerveError):
        Catalog.load(raw)


@pytest.mark.capability("D1.1")
@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"version": "3"},
        {"route": "b"},
        {"target": {"x": 1}},
        {"idempotent_start": True},
        {"failures": (KeyError,)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_names_each_frozen_field(change: dict[str, Any]) -> None:
    tools = Catalog()
    options: dict[str, Any] = {"version": "2", "failures": (ValueError,)}
    tools.add_function(paint, **options)
    other = Catalog()
    other.add_function(paint, **(options | change))
    assert tools.bindings()[0].digest != other.bindings()[0].digest


def test_what_only_guides_a_call_is_not_in_the_digest() -> None:
    digests: set[str] = set()
    changes: list[dict[str, Any]] = [{}, {"description": "B"}, {"timeout_seconds": 1}]
    for options in [*changes, {"concurrency": 2}]:
        tools = Catalog()
        tools.add_function(forecast, **options)
        digests.add(tools.get("forecast").digest)
    assert len(digests) == 1


def test_a_changed_tool_under_an_unchanged_version_is_refused_with_old_and_new() -> None:
    tools = catalog()

    def changed(city: str, days: int) -> str:
        return city

    with pytest.raises(BindingMismatch, match="input_schema") as caught:
        tools.tool(name="forecast")(changed)
    assert set(caught.value.details) == {"description", "input_schema"}
    assert 'version="2"' in caught.value.next_step
    tools.tool(name="forecast", version="2")(changed)
    assert tools.get("forecast").version == "2"
    assert tools.get("forecast", "1").version == "1"
    assert len(tools) == 2


def test_adding_the_same_tool_again_changes_nothing() -> None:
    tools = catalog()
    before = tools.export_bytes()
    tools.tool(forecast)
    assert tools.export_bytes() == before


@pytest.mark.capability("D1.3")
def test_a_call_with_another_digest_is_refused() -> None:
    tools = catalog()
    binding = tools.get("forecast")
    assert tools.match("forecast", "1", binding.digest) == binding
    with pytest.raises(BindingMismatch, match="the call carries sha256:00"):
        tools.match("forecast", "1", "sha256:" + "00" * 32)


def test_an_unknown_tool_is_answered_with_the_nearest_right_one() -> None:
    tools = catalog()
    with pytest.raises(UnknownTool, match="Did you mean 'forecast'"):
        tools.get("forcast")
    with pytest.raises(UnknownTool, match="Known tools: forecast, paint"):
        tools.get("zzz")
    with pytest.raises(UnknownTool, match="Known versions: 1"):
        tools.get("forecast", "9")


def test_catalogs_merge_and_keep_functions_and_what_is_offered() -> None:
    left, right = Catalog(), Catalog(route="other")
    left.tool(forecast)
    right.tool(version="2", name="forecast")(forecast)
    merged = left.merge(right)
    assert [binding.version for binding in merged.bindings()] == ["1", "2"]
    assert {merged.function("forecast", v) for v in ("1", "2")} == {forecast}


def test_typed_arguments_reach_the_function_and_the_context_is_filled_in() -> None:
    tool = catalog().tool_function("paint")
    arguments: dict[str, Any] = {"place": {"title": "hall"}, "when": "2026-12-01", "colour": "blue"}
    typed = tool.arguments("paint", arguments | {"model_config": 2})
    assert isinstance(typed["place"], Place)
    assert tool.invoke(typed, Context()) == "hall 2026 BLUE [1] None a 2.0"
    assert (tool.is_async, tool.context) == (False, "context")
    assert "context" not in tool.input_schema["properties"]  # type: ignore[operator]


async def test_an_async_tool_is_known_as_one() -> None:
    tool = catalog().tool_function("forecast")
    assert tool.is_async
    assert await tool.invoke({"city": "Oslo"}) == "sunny in Oslo"


@pytest.mark.capability("D16.4")
def test_a_listed_exception_proves_a_failure_and_others_do_not() -> None:
    tool = catalog().tool_function("paint")
    assert tool.proves(UnicodeError())
    assert not tool.proves(RuntimeError())


def test_a_value_that_fits_the_schema_and_not_the_type_is_refused_with_its_field() -> None:
    tools = catalog()
    arguments: dict[str, Any] = {"place": {"title": "hall"}, "when": "no date"}
    with pytest.raises(InvalidArguments, match="/when"):
        tools.check_arguments("paint", arguments)
    assert Catalog.load(tools.export_bytes()).check_arguments("paint", arguments)


class Machine:
    def __call__(self, city: str) -> str:
        return city

    def method(self, city: str) -> str:
        return city


def test_methods_and_callable_objects_are_tools_too() -> None:
    tools = Catalog()
    machine = Machine()
    tools.tool(machine.method)
    tools.tool(name="machine")(machine)
    assert [binding.name for binding in tools] == ["method", "machine"]
    assert tools.get("machine").input_schema["required"] == ["city"]


def untyped(city) -> str:  # type: ignore[no-untyped-def] # noqa: ANN001 # pyright: ignore
    return ""


def variable(*cities: str) -> str:
    return ""


def keywords(**cities: str) -> str:
    return ""


def positional(city: str, /) -> str:
    return ""


def foreign(city: object, thing: Machine) -> str:
    return ""


def unreadable(city: "Nowhere") -> str:  # type: ignore[name-defined] # noqa: F821 # pyright: ignore
    return ""


async def generator(city: str) -> Any:
    yield city


@pytest.mark.parametrize(
    "function",
    [untyped, variable, keywords, positional, foreign, unreadable, generator],  # pyright: ignore
    ids=lambda function: function.__name__,
)
def test_a_function_that_gives_no_schema_is_refused_when_it_is_added(function: Any) -> None:
    with pytest.raises(BadInput, match=function.__name__) as caught:
        Catalog().tool(function)
    assert caught.value.next_step


@pytest.mark.parametrize(
    "options",
    [
        {"name": "a b"},
        {"route": "A"},
        {"version": ""},
        {"colour": "red"},
        {"target": {"x": object()}},
        {"failures": (3,)},
        {"failures": ("ValueError",)},
        {"timeout_seconds": 0},
        {"timeout_seconds": -1},
        {"timeout_seconds": float("nan")},
        {"concurrency": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        Catalog().add_function(forecast, **options)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(InvalidName):
        Catalog().tool(lambda: 1)


def test_a_binding_is_immutable_and_compares_by_value() -> None:
    first, second = catalog().get("forecast"), catalog().get("forecast")
    assert first == second
    assert ToolBinding.model_validate_json(canonical_bytes(first.to_json())) == first
