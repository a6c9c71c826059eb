"""Strict JSON in, canonical JSON (RFC 8785) out, and digests over the canonical bytes.

Whatever passes here means the same on every door, in both databases and in every language: no
duplicate key, second root, NUL or lone surrogate, and no number that changes when written again.
"""

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final

import jiter
from pydantic import JsonValue as JsonValue

from nerve.protocol.errors import InvalidJSON, JSONFault, TooLarge
from nerve.protocol.values import DEPTH_MAX as DEPTH_MAX
from nerve.protocol.values import INTEGER_MAX as INTEGER_MAX
from nerve.protocol.values import MENDS, Fault, descend, exact_number, integer, no_nul, printable
from nerve.protocol.values import check_text as check_text
from nerve.protocol.values import check_value as check_value

try:
    import orjson
except ImportError:  # The room imports with pydantic and jiter alone; this is only a fast path.
    orjson = None  # type: ignore[assignment]

JSON_BYTES_MAX: Final = 1024 * 1024
_SUPPLEMENTARY: Final = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
_EXACT_TYPES: Final = frozenset({str, int, bool, type(None)})


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
    except Fault as fault:
        raise fault.refused(where) from None


def read_canonical(raw: bytes, *, depth_max: int = DEPTH_MAX) -> JsonValue:
    """The value of a text that is canonical already, far cheaper than `read_strict`.

    Raises ValueError where that cannot be proven cheaply; `read_strict` then decides.
    """
    if orjson is None:
        raise ValueError("no fast reader")
    if raw.count(b"{") + raw.count(b"[") > depth_max or b"\\u0000" in raw:
        raise ValueError("perhaps too deep, or with NUL")
    value: JsonValue = orjson.loads(raw)
    try:
        again = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        raise ValueError("with an integer beyond 2^53-1") from None
    # Writing gives the same bytes, so nothing was lost: no second value of a key, no long number.
    if again != raw or not _is_plain(value, raw):
        raise ValueError("not canonical, or with floats")
    return value


def canonical_bytes(value: JsonValue | Mapping[str, Any] | Sequence[Any]) -> bytes:
    """RFC 8785: one spelling for one value."""
    if orjson is not None:
        try:
            raw = orjson.dumps(value, option=_OPTIONS)
        except TypeError:
            return _write_checked(value)
        if _is_plain(value, raw) and b"\\u0000" not in raw:
            return raw
    return _write_checked(value)


def digest(value: JsonValue | Mapping[str, Any] | Sequence[Any] | bytes) -> str:
    """`sha256:<hex>` of bytes as they are, or of a value's canonical bytes."""
    data = value if isinstance(value, bytes) else canonical_bytes(value)
    return "sha256:" + sha256(data).hexdigest()


_OPTIONS: Final = (
    0
    if orjson is None
    else orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)


def _is_plain(value: Any, raw: bytes) -> bool:
    """Whether orjson's `raw` is surely RFC 8785: no floats, foreign types or keys beyond the BMP.

    UTF-16 orders characters beyond the BMP otherwise than UTF-8 does.
    """
    if not raw.isascii() and any(lead in raw for lead in _SUPPLEMENTARY):
        return False
    nested: list[Any] = [[value]]
    while nested:
        inside = nested.pop()
        if inside.__class__ is dict:
            inside = inside.values()
        for item in inside:
            kind = item.__class__
            if kind in _EXACT_TYPES:
                continue
            if kind is not dict and kind is not list:
                return False
            nested.append(item)
    return True


def _as_bytes(raw: bytes | str, where: str) -> bytes:
    if isinstance(raw, bytes):
        return raw
    try:
        return raw.encode()
    except UnicodeEncodeError:
        fault = Fault(JSONFault.SURROGATE, "the text holds a lone surrogate")
        raise fault.refused(where) from None


def _syntax(message: str, where: str) -> InvalidJSON:
    reasons = {
        "duplicate key": JSONFault.DUPLICATE_KEY,
        "trailing characters": JSONFault.SECOND_ROOT,
        "number out of range": JSONFault.LOSSY_NUMBER,
        "recursion limit": JSONFault.DEPTH,
        "hex escape": JSONFault.SURROGATE,
        "surrogate": JSONFault.SURROGATE,
        "unicode code point": JSONFault.ENCODING,
    }
    found = (reason for words, reason in reasons.items() if words in message)
    reason = next(found, JSONFault.SYNTAX)
    shown = printable(message)[:300]
    return InvalidJSON(
        f"not strict JSON: {shown}", reason=reason, where=where, next_step=MENDS[reason]
    )


def _settled(value: Any, depth: int) -> JsonValue:
    """A fresh tree of jiter, checked in place; only numbers are replaced."""
    kind = value.__class__
    if kind is str:
        return no_nul(value)
    if kind is dict:
        return _settled_object(value, depth)
    if kind is list:
        return _settled_array(value, depth)
    if kind is int:
        return integer(value)
    if kind is jiter.LosslessFloat:
        return exact_number(bytes(value).decode(), float(value))
    return value  # type: ignore[no-any-return]


def _settled_object(value: dict[str, JsonValue], depth: int) -> JsonValue:
    key = ""
    try:
        descend(depth)
        for key, item in value.items():
            no_nul(key)
            value[key] = _settled(item, depth - 1)
    except Fault as fault:
        raise fault.at(key) from None
    return value


def _settled_array(value: list[JsonValue], depth: int) -> JsonValue:
    index = 0
    try:
        descend(depth)
        for index, item in enumerate(value):
            value[index] = _settled(item, depth - 1)
    except Fault as fault:
        raise fault.at(index) from None
    return value


def _write_checked(value: object) -> bytes:
    checked = check_value(value, depth_max=4 * DEPTH_MAX)
    if orjson is not None:
        raw = orjson.dumps(checked, option=_OPTIONS)
        if _is_plain(checked, raw):
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
