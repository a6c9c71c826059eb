"""Reads a typed Python function: its JSON Schema, and typed arguments for calling it."""

import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from nerve.protocol.arguments import PROBLEMS_MAX
from nerve.protocol.canonical import canonical_bytes, check_value
from nerve.protocol.errors import BadInput, InvalidArguments
from nerve.protocol.identity import Origin

Function = Callable[..., Any]  # Any: users' functions have every shape
_PREFIX: Final = "p_"
_MAPS: Final = frozenset({"properties", "$defs", "patternProperties"})
_VALUES: Final = frozenset({"default", "const", "enum", "examples"})


class ToolContext(ABC):
    """What a running tool may know and do; a parameter of this type is filled in by Hands."""

    execution: str
    attempt: int
    origin: Origin

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of one call: pass it to what the tool calls."""
        return self.execution

    @abstractmethod
    async def write(self, data: bytes | str) -> None:
        """Add to the output that can be read while the tool runs."""

    @property
    @abstractmethod
    def cancel_requested(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFunction:
    """A callable with its schema; `context` names the parameter that takes a ToolContext."""

    call: Function
    is_async: bool
    model: type[BaseModel]
    names: tuple[str, ...]
    context: str | None
    description: str
    input_schema: dict[str, JsonValue]
    failures: tuple[type[Exception], ...] = ()

    def arguments(self, tool: str, value: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Typed keyword arguments from JSON ones: dates, enums and models where declared."""
        try:
            made = self.model.model_validate_json(canonical_bytes(value), strict=True)
        except ValidationError as error:
            raise _refused(tool, error) from None
        return {name: getattr(made, _PREFIX + name) for name in self.names}

    def invoke(self, arguments: Mapping[str, Any], context: ToolContext | None = None) -> Any:
        """Call it; an async function returns its awaitable."""
        extra = {} if self.context is None else {self.context: context}
        return self.call(**arguments, **extra)

    def proves(self, error: BaseException) -> bool:
        """Whether the binding says that this exception leaves no effect behind."""
        return isinstance(error, self.failures)


def read_function(function: Function, failures: tuple[type[Exception], ...] = ()) -> ToolFunction:
    """The schema of a function whose parameters are all typed.

    The schema is as pydantic writes it; where two sides may hold different releases of it, both
    should load one exported catalog.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise _unfit(name, "is a generator", "Return the result; write output through ToolContext")
    hints = _hints(function, name)
    context: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _unfit(name, f"takes {parameter}", "Name each parameter")
        if parameter.name not in hints:
            raise _unfit(name, f"has no type for {parameter.name!r}", "Annotate it")
        if _is_context(hints[parameter.name]):
            context = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    model = _model(name, fields)
    return ToolFunction(
        call=function,
        is_async=_is_async(function),
        model=model,
        names=tuple(fields),
        context=context,
        description=inspect.getdoc(function) or "",
        input_schema=_schema(model, name),
        failures=failures,
    )


def _model(name: str, fields: dict[str, Any]) -> type[BaseModel]:
    # Fields get a prefix, so that a parameter may be named as something of BaseModel is.
    made: dict[str, Any] = {
        _PREFIX + field: (hint, Field(default, alias=field))
        for field, (hint, default) in fields.items()
    }
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **made)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        reason = str(error).splitlines()[0]
        raise _unfit(name, f"has a type without JSON: {reason}", "Use JSON types") from None


def _schema(model: type[BaseModel], name: str) -> dict[str, JsonValue]:
    try:
        made = model.model_json_schema(by_alias=True, mode="validation")
    except PydanticUserError as error:
        reason = str(error).splitlines()[0]
        raise _unfit(name, f"has a type without a schema: {reason}", "Use JSON types") from None
    checked = check_value(_untitled(made), f"{name}.schema")
    assert isinstance(checked, dict)
    return checked


def _untitled(schema: Any, names: bool = False) -> Any:
    """Without the titles that pydantic derives; `names` says that the keys are properties."""
    if isinstance(schema, list):
        return [_untitled(item) for item in cast("Sequence[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    kept = cast("dict[str, Any]", schema)
    return {
        key: item
        if key in _VALUES and not names
        else _untitled(item, names=not names and key in _MAPS)
        for key, item in kept.items()
        if names or key != "title"
    }


def _hints(function: Function, name: str) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except Exception as error:
        raise _unfit(name, f"has a type that cannot be read: {error}", "Import it") from None


def _is_context(hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return any(isinstance(each, type) and issubclass(each, ToolContext) for each in members)


def _is_async(function: Function) -> bool:
    call = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _unfit(name: str, what: str, step: str) -> BadInput:
    return BadInput(f"the tool function {name!r} {what}", where=name, next_step=step)


def _refused(tool: str, error: ValidationError) -> InvalidArguments:
    problems = [
        {"field": "".join(f"/{step}" for step in each["loc"]), "problem": each["msg"]}
        for each in error.errors(include_url=False, include_input=False)[:PROBLEMS_MAX]
    ]
    lines = "; ".join(f"{each['field'] or '/'}: {each['problem']}" for each in problems)
    return InvalidArguments(
        f"the arguments of tool {tool!r} do not fit: {lines}",
        where=problems[0]["field"] or "/",
        next_step="Call it again with arguments that fit its schema",
        details={"problems": problems},
    )
