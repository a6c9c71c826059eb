"""Checks a tool call's arguments against the binding's JSON Schema, with a repairable answer.

Both sides use this one reading of the schema, so that a Brain without the tool's code refuses
what Hands would refuse. It covers what pydantic generates; unknown keywords do not refuse.
"""

import difflib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from pydantic import JsonValue

from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.errors import InvalidArguments

Schema = dict[str, Any]
PROBLEMS_MAX: Final = 8


def check_arguments(tool: str, schema: Schema, value: JsonValue) -> dict[str, JsonValue]:
    """The arguments as they are, or one error that names every field at fault."""
    if not isinstance(value, dict):
        raise _refused(tool, schema, [("", f"expected an object, got {_named(value)}")])
    problems = list(islice(_problems(schema, schema, value, ""), PROBLEMS_MAX))
    if problems:
        raise _refused(tool, schema, problems)
    return value


def _refused(tool: str, schema: Schema, problems: list[tuple[str, str]]) -> InvalidArguments:
    lines = "; ".join(f"{pointer or '/'}: {text}" for pointer, text in problems)
    return InvalidArguments(
        f"the arguments of tool {tool!r} do not fit: {lines}",
        where=problems[0][0] or "/",
        next_step=f"Call it again with arguments that fit {_short(schema)}",
        details={"problems": [{"field": pointer, "problem": text} for pointer, text in problems]},
    )


def _problems(
    root: Schema, schema: Schema, value: JsonValue, pointer: str
) -> Iterator[tuple[str, str]]:
    if "$ref" in schema:
        yield from _problems(root, _resolved(root, schema["$ref"]), value, pointer)
    if "type" in schema and not _is_type(schema["type"], value):
        yield pointer, f"expected {_type_name(schema['type'])}, got {_named(value)}"
        return
    if "const" in schema and not _equal(value, schema["const"]):
        yield pointer, f"expected {_shown(schema['const'])}, got {_shown(value)}"
    if "enum" in schema and not any(_equal(value, item) for item in schema["enum"]):
        choices = ", ".join(_shown(item) for item in schema["enum"][:20])
        yield pointer, f"expected one of {choices}, got {_shown(value)}"
    yield from _combined(root, schema, value, pointer)
    if isinstance(value, dict):
        yield from _object(root, schema, value, pointer)
    elif isinstance(value, list):
        yield from _array(root, schema, value, pointer)
    elif isinstance(value, str):
        yield from _text(schema, value, pointer)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number(schema, value, pointer)


def _combined(
    root: Schema, schema: Schema, value: JsonValue, pointer: str
) -> Iterator[tuple[str, str]]:
    for part in schema.get("allOf", ()):
        yield from _problems(root, part, value, pointer)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if not choices:
        return
    found = [list(_problems(root, choice, value, pointer)) for choice in choices]
    if all(found):
        # The choice that fits best is the one that was meant: its faults lie deepest.
        yield from max(found, key=lambda faults: max(len(where) for where, _ in faults))


def _object(
    root: Schema, schema: Schema, value: dict[str, JsonValue], pointer: str
) -> Iterator[tuple[str, str]]:
    properties: Schema = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{pointer}/{_step(name)}", "required and missing"
    extra = schema.get("additionalProperties", True)
    for name, item in value.items():
        where = f"{pointer}/{_step(name)}"
        if name in properties:
            yield from _problems(root, properties[name], item, where)
        elif extra is False:
            near = difflib.get_close_matches(name, properties, n=1)
            yield where, "unknown field" + (f"; did you mean {near[0]!r}?" if near else "")
        elif isinstance(extra, dict):
            yield from _problems(root, extra, item, where)  # pyright: ignore[reportUnknownArgumentType]
    yield from _between(schema, "Properties", len(value), "fields", pointer)


def _array(
    root: Schema, schema: Schema, value: list[JsonValue], pointer: str
) -> Iterator[tuple[str, str]]:
    prefix: list[Schema] = schema.get("prefixItems", [])
    for index, item in enumerate(value):
        where = f"{pointer}/{index}"
        if index < len(prefix):
            yield from _problems(root, prefix[index], item, where)
        elif isinstance(schema.get("items"), dict):
            yield from _problems(root, schema["items"], item, where)
    if schema.get("uniqueItems") and len({canonical_bytes(item) for item in value}) < len(value):
        yield pointer, "the items must differ"
    yield from _between(schema, "Items", len(value), "items", pointer)


def _text(schema: Schema, value: str, pointer: str) -> Iterator[tuple[str, str]]:
    pattern = schema.get("pattern")
    if pattern is not None and not _pattern(pattern).search(value):
        yield pointer, f"expected text that matches {pattern}, got {_shown(value)}"
    yield from _between(schema, "Length", len(value), "characters", pointer)


_BOUNDS: Final[dict[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "minimum": ("at least", lambda value, bound: value >= bound),
    "maximum": ("at most", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("more than", lambda value, bound: value > bound),
    "exclusiveMaximum": ("less than", lambda value, bound: value < bound),
}


def _number(schema: Schema, value: int | float, pointer: str) -> Iterator[tuple[str, str]]:
    for key, (words, holds) in _BOUNDS.items():
        if key in schema and not holds(value, schema[key]):
            yield pointer, f"expected {words} {schema[key]}, got {value}"
    step = schema.get("multipleOf")
    if step and value % step:
        yield pointer, f"expected a multiple of {step}, got {value}"


def _between(
    schema: Schema, what: str, size: int, unit: str, pointer: str
) -> Iterator[tuple[str, str]]:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if least is not None and size < least:
        yield pointer, f"expected at least {least} {unit}, got {size}"
    if most is not None and size > most:
        yield pointer, f"expected at most {most} {unit}, got {size}"


def _resolved(root: Schema, reference: str) -> Schema:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found[step.replace("~1", "/").replace("~0", "~")] if step else found
    return found  # type: ignore[no-any-return]


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
_ARTICLES: Final = {"object": "an", "array": "an", "integer": "an", "null": ""}


def _is_type(expected: str | list[str], value: JsonValue) -> bool:
    if isinstance(expected, list):
        return any(_is_type(each, value) for each in expected)
    if isinstance(value, bool):
        return expected == "boolean"
    return isinstance(value, _TYPES.get(expected, (object,)))


def _type_name(expected: str | list[str]) -> str:
    names = [expected] if isinstance(expected, str) else expected
    return " or ".join(f"{_ARTICLES.get(name, 'a')} {name}".strip() for name in names)


def _named(value: JsonValue) -> str:
    if value is None:
        return "null"
    kinds = ("boolean", "integer", "number", "string", "array", "object")
    kind = next(kind for kind in kinds if _is_type(kind, value))
    return _type_name(kind) + ("" if isinstance(value, (dict, list)) else f" {_shown(value)}")


def _equal(left: JsonValue, right: JsonValue) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _shown(value: JsonValue) -> str:
    text = canonical_bytes(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}..."


def _short(schema: Schema) -> str:
    text = canonical_bytes(schema).decode()
    return text if len(text) <= 2000 else f"the tool's schema of {len(text)} characters"


def _step(name: str) -> str:
    return name[:100].replace("~", "~0").replace("/", "~1")


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
