"""Which values JSON can carry exactly between languages and databases, and why others cannot."""

import dataclasses
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, cast

from pydantic import BaseModel, JsonValue

from nerve.protocol.errors import InvalidJSON, JSONFault

DEPTH_MAX: Final = 64
INTEGER_MAX: Final = 2**53 - 1
# From 2^53 up to here RFC 8785 writes a float as an integer that a strict reader refuses.
_EXPONENT_FROM: Final = 1e21

_SURROGATE = re.compile("[\ud800-\udfff]")
MENDS: Final = {
    JSONFault.LOSSY_NUMBER: "Send the number as a string",
    JSONFault.NUL: "Remove the character U+0000 or send the bytes as base64",
    JSONFault.SURROGATE: "Send whole characters: a surrogate must stand in a pair",
    JSONFault.DEPTH: f"Nest at most {DEPTH_MAX} levels",
    JSONFault.DUPLICATE_KEY: "Name each key once",
    JSONFault.SECOND_ROOT: "Send one JSON value",
    JSONFault.TYPE: "Return text, numbers, booleans, None, lists and dictionaries",
    JSONFault.KEY: "Use text as keys",
    JSONFault.CYCLE: "Return a value that does not contain itself",
    JSONFault.ENCODING: "Send UTF-8 without a byte order mark",
    JSONFault.SYNTAX: "Send one complete JSON value",
}


class Fault(Exception):
    """A fault on its way up; every level it passes adds its key to the pointer."""

    def __init__(self, reason: JSONFault, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.path: list[object] = []

    def at(self, key: object) -> "Fault":
        self.path.append(key)
        return self

    def refused(self, where: str) -> InvalidJSON:
        pointer = where + "".join(f"/{_step(key)}" for key in reversed(self.path))
        return InvalidJSON(
            printable(str(self)),
            reason=self.reason,
            where=printable(pointer)[:512] or "/",
            next_step=MENDS[self.reason],
        )


def printable(text: str) -> str:
    """A text about hostile text, without what no database holds."""
    return _SURROGATE.sub("\ufffd", text).replace("\x00", "\ufffd")


def _step(key: object) -> str:
    # A foreign key may be anything: its own text is not asked for.
    if isinstance(key, str):
        return str.__str__(key).replace("~", "~0").replace("/", "~1")
    return str(key) if type(key) is int and abs(key) <= INTEGER_MAX else type(key).__name__


def check_value(value: object, where: str = "", *, depth_max: int = DEPTH_MAX) -> JsonValue:
    """A copy of an in-memory value as JSON that can be stored, for tools' and models' results.

    Tuples become lists, integral floats integers; pydantic models and dataclasses are dumped.
    """
    try:
        return _checked(value, depth_max)
    except Fault as fault:
        if fault.reason is JSONFault.DEPTH and _is_cyclic(value):
            fault = Fault(JSONFault.CYCLE, "the value contains itself")
        raise fault.refused(where) from None


def check_text(text: str, where: str) -> str:
    """Text that both databases can hold: no NUL and no lone surrogate."""
    try:
        return _string(text)
    except Fault as fault:
        raise fault.refused(where) from None


def _checked(value: object, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _string(str.__str__(value))
    if isinstance(value, int):
        return integer(int(value))
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, dict):
        return _checked_object(cast("dict[object, object]", value), depth)
    if isinstance(value, (list, tuple)):
        return _checked_array(cast("Sequence[object]", value), depth)
    if isinstance(value, BaseModel):
        return _checked(_dumped(value), depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _checked({field.name: getattr(value, field.name) for field in fields}, depth)
    raise Fault(JSONFault.TYPE, f"a value of type {type(value).__qualname__} is not JSON")


def _checked_object(value: dict[object, object], depth: int) -> JsonValue:
    copy: dict[str, JsonValue] = {}
    key: object = ""
    try:
        descend(depth)
        for key, item in value.items():
            copy[_key(key)] = _checked(item, depth - 1)
    except Fault as fault:
        raise fault.at(key) from None
    return copy


def _checked_array(value: Sequence[object], depth: int) -> JsonValue:
    copy: list[JsonValue] = []
    try:
        descend(depth)
        for item in value:
            copy.append(_checked(item, depth - 1))
    except Fault as fault:
        raise fault.at(len(copy)) from None
    return copy


def _dumped(value: BaseModel) -> object:
    try:
        return value.model_dump(mode="json")
    except Exception as error:
        name = type(value).__qualname__
        raise Fault(JSONFault.TYPE, f"a {name} cannot be dumped as JSON: {error}") from None


def _is_cyclic(value: object, above: frozenset[int] = frozenset()) -> bool:
    if not isinstance(value, (dict, list, tuple)) or len(above) > 4 * DEPTH_MAX:
        return False
    held = cast("Sequence[object] | dict[object, object]", value)
    inside = above | {id(held)}
    items = held.values() if isinstance(held, dict) else held
    return id(held) in above or any(_is_cyclic(item, inside) for item in items)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise Fault(JSONFault.KEY, f"a key of type {type(key).__qualname__} is not text")
    return _string(str.__str__(key))


def _string(text: str) -> str:
    no_nul(text)
    if not text.isascii() and _SURROGATE.search(text):
        raise Fault(JSONFault.SURROGATE, "text holds a lone surrogate")
    return text


def no_nul(text: str) -> str:
    if "\x00" in text:
        raise Fault(JSONFault.NUL, "text holds the character U+0000")
    return text


def integer(number: int) -> int:
    if -INTEGER_MAX <= number <= INTEGER_MAX:
        return number
    size = "with more than 40 digits" if abs(number) >= 10**40 else str(number)
    raise Fault(JSONFault.LOSSY_NUMBER, f"the integer {size} is beyond 2^53-1")


def exact_number(text: str, number: float) -> int | float:
    if number in (float("inf"), float("-inf")) or not _same_decimal(text, number):
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise Fault(JSONFault.LOSSY_NUMBER, f"the number {shown} cannot be carried exactly")
    return _float(number)


def _same_decimal(text: str, number: float) -> bool:
    shortest = repr(number)
    return text == shortest or Decimal(text) == Decimal(shortest)


def _float(number: float) -> int | float:
    size = abs(number)
    if number != number or size == float("inf"):
        raise Fault(JSONFault.LOSSY_NUMBER, f"{number} is not a JSON number")
    if size == 0.0:
        if str(number) == "-0.0":
            raise Fault(JSONFault.LOSSY_NUMBER, "-0.0 loses its sign in JSON")
        return 0
    if INTEGER_MAX < size < _EXPONENT_FROM:
        raise Fault(JSONFault.LOSSY_NUMBER, f"the number {number!r} is beyond 2^53-1")
    return int(number) if size <= INTEGER_MAX and number.is_integer() else number


def descend(depth: int) -> None:
    if depth == 0:
        raise Fault(JSONFault.DEPTH, "nested too deeply")
