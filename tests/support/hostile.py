"""What no door lets in: JSON texts, values and names with the fault that each of them has."""

from typing import Any, Final

from nerve.protocol.errors import JSONFault

F = JSONFault
DEEP: Final = 1000

TEXTS: Final[dict[str, tuple[str, JSONFault]]] = {
    "duplicate key": ('{"a":1,"a":2}', F.DUPLICATE_KEY),
    "duplicate key inside": ('{"a":{"b":1,"b":1}}', F.DUPLICATE_KEY),
    "two roots": ("{}{}", F.SECOND_ROOT),
    "a root and more": ('{"a":1} x', F.SECOND_ROOT),
    "NaN": ('{"a":NaN}', F.SYNTAX),
    "Infinity": ('{"a":-Infinity}', F.SYNTAX),
    "overflow": ('{"a":1e400}', F.LOSSY_NUMBER),
    "large integer": ('{"a":9007199254740993}', F.LOSSY_NUMBER),
    "long decimal": ('{"a":0.123456789012345678901234567890}', F.LOSSY_NUMBER),
    "negative zero": ('{"a":-0.0}', F.LOSSY_NUMBER),
    "NUL": ('{"a":"\\u0000"}', F.NUL),
    "NUL in a key": ('{"\\u0000":1}', F.NUL),
    "lone surrogate": ('{"a":"\\ud800"}', F.SURROGATE),
    "too deep": ("[" * DEEP + "]" * DEEP, F.DEPTH),
    "byte order mark": ('\ufeff{"a":1}', F.SYNTAX),
    "trailing comma": ('{"a":1,}', F.SYNTAX),
    "cut": ('{"a":"b', F.SYNTAX),
    "single quotes": ("{'a':1}", F.SYNTAX),
}


def deep(levels: int = DEEP) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made]
    return made


def values() -> dict[str, tuple[Any, JSONFault]]:
    """Python values that are no JSON, made anew for each use."""
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    return {
        "NaN": (float("nan"), F.LOSSY_NUMBER),
        "Infinity": (float("inf"), F.LOSSY_NUMBER),
        "negative zero": (-0.0, F.LOSSY_NUMBER),
        "large integer": (2**53 + 1, F.LOSSY_NUMBER),
        "NUL": ("a\x00b", F.NUL),
        "lone surrogate": ("a\ud800b", F.SURROGATE),
        "key that is no text": ({1: "a"}, F.KEY),
        "too deep": (deep(), F.DEPTH),
        "itself inside": (cycle, F.CYCLE),
        "bytes": (b"\x00\xff", F.TYPE),
        "set": ({1, 2}, F.TYPE),
        "object": (object(), F.TYPE),
    }


NAMES: Final = {
    "empty": "",
    "over-long": "x" * 257,
    "NUL": "a\x00b",
    "newline": "a\nb",
    "lone surrogate": "\ud800",
    "control character": "\x7f",
}
