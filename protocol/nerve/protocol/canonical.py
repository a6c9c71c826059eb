"""Strict JSON in, canonical JSON (RFC 8785) out, and digests over the canonical bytes.

Whatever passes here means the same on every door, in both databases and in every language: no
duplicate key, second root, NUL or lone surrogate, and no number that changes when written again.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import jiter
from pydantic import BaseModel, JsonValue

from nerve.protocol.errors import InvalidJSON, JSONFault, TooLarge

try:
    import orjson
except ImportError:  # The room imports with pydantic and jiter alone; this is only a fast path.
    orjson = None  # type: ignore[assignment]

JSON_BYTES_MAX: Final = 1024 * 1024
DEPTH_MAX: Final = 64
INTEGER_MAX: Final = 2**53 - 1
# From 2^53 up to here RFC 8785 writes a float as an integer that a strict reader refuses.
_EXPONENT_FROM: Final = 1e21

_SURROGATE = re.compile("[\ud800-\udfff]")
# Bytes that may stand for a float, or for a key that UTF-16 orders otherwise than UTF-8.
_DOUBTFUL = re.compile(rb'(?:":|[\[,]|^)-?[0-9]+[.eE]')
_SUPPLEMENTARY = re.compile(rb"[\xf0-\xf4]")
_MENDS: Final = {
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


class _Fault(Exception):
    """A fault on its way up; every level it passes adds its key to the pointer."""

    def __init__(self, reason: JSONFault, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.path: list[object] = []

    def at(self, key: object) -> "_Fault":
        self.path.append(key)
        return self

    def refused(self, where: str) -> InvalidJSON:
        steps = (str(key).replace("~", "~0").replace("/", "~1") for key in reversed(self.path))
        pointer = where + "".join(f"/{step}" for step in steps)
        visible = _SURROGATE.sub("\ufffd", pointer).replace("\x00", "\ufffd")
        return InvalidJSON(
            str(self), reason=self.reason, where=visible[:512] or "/", next_step=_MENDS[self.reason]
        )


def read_strict(
    raw: bytes | str,
    *,
    bytes_max: int = JSON_BYTES_MAX,
    depth_max: int = DEPTH_MAX,
    where: str = "",
) -> JsonValue:
    """The one JSON value in `raw`, or an error that names the fault and its JSON pointer."""
    data = _as_bytes(raw, where)
    if len(data) > bytes_max:
        raise TooLarge(
            f"JSON of {len(data)} bytes; the limit is {bytes_max}",
            where=where,
            next_step="Send less, or store it as an object and send a reference",
        )
    try:
        value = jiter.from_json(
            data, catch_duplicate_keys=True, allow_inf_nan=False, float_mode="lossless-float"
        )
    except ValueError as error:
        raise _syntax(str(error), where) from None
    try:
        return _settled(value, depth_max)
    except _Fault as fault:
        raise fault.refused(where) from None


def read_canonical(raw: bytes) -> JsonValue:
    """The value of a text that is canonical already, far cheaper than `read_strict`.

    Raises ValueError where that cannot be proven cheaply; `read_strict` then decides.
    """
    if orjson is None:
        raise ValueError("no fast reader")
    if raw.count(b"{") + raw.count(b"[") > DEPTH_MAX or b"\\u0000" in raw or not _plain(raw):
        raise ValueError("not provably canonical")
    value: JsonValue = orjson.loads(raw)
    # Writing gives the same bytes, so nothing was lost: no second value of a key, no long number.
    if orjson.dumps(value, option=_OPTIONS) != raw:
        raise ValueError("not canonical")
    return value


def check_value(value: object, where: str = "", *, depth_max: int = DEPTH_MAX) -> JsonValue:
    """A copy of an in-memory value as JSON that can be stored, for tools' and models' results.

    Tuples become lists, integral floats integers; pydantic models and dataclasses are dumped.
    """
    try:
        return _checked(value, depth_max)
    except _Fault as fault:
        if fault.reason is JSONFault.DEPTH and _is_cyclic(value, set()):
            fault = _Fault(JSONFault.CYCLE, "the value contains itself")
        raise fault.refused(where) from None


def canonical_bytes(value: JsonValue | Mapping[str, Any] | Sequence[Any]) -> bytes:
    """RFC 8785: one spelling for one value."""
    if orjson is not None:
        try:
            raw = orjson.dumps(value, option=_OPTIONS)
        except TypeError:
            return _write_checked(value)
        # orjson writes NaN as null, so a null is a reason to look closer.
        if _plain(raw) and b"null" not in raw and b"\\u0000" not in raw:
            return raw
    return _write_checked(value)


def digest(value: JsonValue | Mapping[str, Any] | Sequence[Any] | bytes) -> str:
    """`sha256:<hex>` of bytes as they are, or of a value's canonical bytes."""
    data = value if isinstance(value, bytes) else canonical_bytes(value)
    return "sha256:" + sha256(data).hexdigest()


def check_text(text: str, where: str) -> str:
    """Text that both databases can hold: no NUL and no lone surrogate."""
    try:
        return _string(text)
    except _Fault as fault:
        raise fault.refused(where) from None


_OPTIONS: Final = (
    0
    if orjson is None
    else orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)


def _plain(raw: bytes) -> bool:
    """Whether orjson and RFC 8785 surely agree: no float, no character beyond the BMP."""
    if not raw.isascii() and _SUPPLEMENTARY.search(raw):
        return False
    return _DOUBTFUL.search(raw) is None


def _as_bytes(raw: bytes | str, where: str) -> bytes:
    if isinstance(raw, bytes):
        return raw
    try:
        return raw.encode()
    except UnicodeEncodeError:
        fault = _Fault(JSONFault.SURROGATE, "the text holds a lone surrogate")
        raise fault.refused(where) from None


def _syntax(message: str, where: str) -> InvalidJSON:
    reasons = {
        "duplicate key": JSONFault.DUPLICATE_KEY,
        "trailing characters": JSONFault.SECOND_ROOT,
        "recursion limit": JSONFault.DEPTH,
        "hex escape": JSONFault.SURROGATE,
        "surrogate": JSONFault.SURROGATE,
        "unicode code point": JSONFault.ENCODING,
    }
    found = (reason for words, reason in reasons.items() if words in message)
    reason = next(found, JSONFault.SYNTAX)
    shown = _SURROGATE.sub("\ufffd", message).replace("\x00", "\ufffd")[:300]
    return InvalidJSON(
        f"not strict JSON: {shown}", reason=reason, where=where, next_step=_MENDS[reason]
    )


def _settled(value: Any, depth: int) -> JsonValue:
    """A fresh tree of jiter, checked in place; only numbers are replaced."""
    kind = type(value)
    if kind is str:
        return _no_nul(value)
    if kind is dict or kind is list:
        return _settled_inside(value, depth)
    if kind is int:
        return _integer(value)
    if kind is jiter.LosslessFloat:
        return _exact(bytes(value).decode(), float(value))
    return value  # type: ignore[no-any-return]


def _settled_inside(value: Any, depth: int) -> JsonValue:
    if depth == 0:
        raise _Fault(JSONFault.DEPTH, "nested too deeply")
    is_object = type(value) is dict
    key: Any = None
    try:
        for key, item in value.items() if is_object else enumerate(value):
            if is_object:
                _no_nul(key)
            value[key] = _settled(item, depth - 1)
    except _Fault as fault:
        raise fault.at(key) from None
    return value  # type: ignore[no-any-return]


def _checked(value: object, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _string(str.__str__(value))
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, (dict, list, tuple)):
        return _checked_inside(value, depth)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, BaseModel):
        return _checked(_dumped(value), depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _checked({field.name: getattr(value, field.name) for field in fields}, depth)
    raise _Fault(JSONFault.TYPE, f"a value of type {type(value).__qualname__} is not JSON")


def _checked_inside(value: Any, depth: int) -> JsonValue:
    if depth == 0:
        raise _Fault(JSONFault.DEPTH, "nested too deeply")
    is_object = isinstance(value, dict)
    items: list[JsonValue] = []
    copy: dict[str, JsonValue] = {}
    key: Any = None
    try:
        for key, item in value.items() if is_object else enumerate(value):
            checked = _checked(item, depth - 1)
            if is_object:
                copy[_key(key)] = checked
            else:
                items.append(checked)
    except _Fault as fault:
        raise fault.at(key) from None
    return copy if is_object else items


def _dumped(value: BaseModel) -> object:
    try:
        return value.model_dump(mode="json")
    except Exception as error:
        name = type(value).__qualname__
        raise _Fault(JSONFault.TYPE, f"a {name} cannot be dumped as JSON: {error}") from None


def _is_cyclic(value: object, above: set[int]) -> bool:
    if not isinstance(value, (dict, list, tuple)):
        return False
    if id(value) in above:  # pyright: ignore[reportUnknownArgumentType]
        return True
    if len(above) > 4 * DEPTH_MAX:
        return False
    inside = above | {id(value)}  # pyright: ignore[reportUnknownArgumentType]
    items: Any = value.values() if isinstance(value, dict) else value
    return any(_is_cyclic(item, inside) for item in items)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise _Fault(JSONFault.KEY, f"a key of type {type(key).__qualname__} is not text")
    return _string(str.__str__(key))


def _string(text: str) -> str:
    _no_nul(text)
    if not text.isascii() and _SURROGATE.search(text):
        raise _Fault(JSONFault.SURROGATE, "text holds a lone surrogate")
    return text


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise _Fault(JSONFault.NUL, "text holds the character U+0000")
    return text


def _integer(number: int) -> int:
    if -INTEGER_MAX <= number <= INTEGER_MAX:
        return number
    size = "with more than 40 digits" if abs(number) >= 10**40 else str(number)
    raise _Fault(JSONFault.LOSSY_NUMBER, f"the integer {size} is beyond 2^53-1")


def _exact(text: str, number: float) -> int | float:
    if number in (float("inf"), float("-inf")) or not _same_decimal(text, number):
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise _Fault(JSONFault.LOSSY_NUMBER, f"the number {shown} cannot be carried exactly")
    return _float(number)


def _same_decimal(text: str, number: float) -> bool:
    shortest = repr(number)
    return text == shortest or Decimal(text) == Decimal(shortest)


def _float(number: float) -> int | float:
    size = abs(number)
    if number != number or size == float("inf"):
        raise _Fault(JSONFault.LOSSY_NUMBER, f"{number} is not a JSON number")
    if size == 0.0:
        if str(number) == "-0.0":
            raise _Fault(JSONFault.LOSSY_NUMBER, "-0.0 loses its sign in JSON")
        return 0
    if INTEGER_MAX < size < _EXPONENT_FROM:
        raise _Fault(JSONFault.LOSSY_NUMBER, f"the number {number!r} is beyond 2^53-1")
    return int(number) if size <= INTEGER_MAX and number.is_integer() else number


def _write_checked(value: object) -> bytes:
    checked = check_value(value, depth_max=4 * DEPTH_MAX)
    if orjson is not None:
        raw = orjson.dumps(checked, option=_OPTIONS)
        if _plain(raw):
            return raw
    return _write(checked).encode()


def _write(value: JsonValue) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{_quote(key)}:{_write(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    if isinstance(value, str):
        return _quote(value)
    return _write_float(value) if isinstance(value, float) else json.dumps(value)


_quote = json.JSONEncoder(ensure_ascii=False).encode


def _write_float(number: float) -> str:
    """ECMAScript's Number to String, from the shortest digits that Python finds as well."""
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    point = len(text) + exponent
    minus = "-" if sign else ""
    if 0 < point <= 21:
        whole = text[:point].ljust(point, "0")
        return minus + (f"{whole}.{text[point:]}" if text[point:] else whole)
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    tail = f".{text[1:]}" if text[1:] else ""
    return f"{minus}{text[0]}{tail}e{point - 1:+d}"
