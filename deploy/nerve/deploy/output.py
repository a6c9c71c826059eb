"""What commands print: sentences for people, or JSON for programs, and never a terminal's control codes."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, cast, final

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(value: Any) -> Any:
    """The value as JSON knows it: dataclasses, wire models, enums and paths become plain."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value
    to_json = getattr(value, "to_json", None)
    if to_json is not None:
        return plain(to_json())
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {str(key): plain(each) for key, each in members.items()}
    if isinstance(value, PurePath):
        return str(value)
    return [plain(each) for each in cast("Iterable[Any]", value)]


def as_json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=True)


def shown(text: str) -> str:
    """Text of a model or tool, safe for a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def brief(text: str, most: int = 160) -> str:
    """One line of it."""
    line = " ".join(shown(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def clock_time(at: int | None) -> str:
    """Milliseconds since the epoch as a local time of day with milliseconds."""
    if at is None:
        return "-"
    moment = datetime.fromtimestamp(at / 1000, tz=UTC).astimezone()
    return f"{moment:%H:%M:%S}.{at % 1000:03d}"


def day_time(at: int | None) -> str:
    if at is None:
        return "-"
    return f"{datetime.fromtimestamp(at / 1000, tz=UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def took(begin: int | None, end: int | None) -> str:
    """How long it was from `begin` to `end`, in milliseconds since the epoch."""
    if begin is None or end is None:
        return ""
    milliseconds = end - begin
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def error_line(
    code: str,
    message: str,
    next_step: str,
    *,
    as_json: bool,
    body: Mapping[str, Any] | None = None,
) -> str:
    """One sentence, or one JSON object, for standard error."""
    if as_json:
        found = body or {"code": code, "message": message, "next_step": next_step}
        return json.dumps({"error": plain(found)}, ensure_ascii=True)
    return "nerve: " + shown(f"{message}. {next_step}" if next_step else message).rstrip(".") + "."


def mismatch_lines(details: Mapping[str, Any]) -> list[str]:
    """The old and the new form of each tool that a BindingMismatch names, as far as they differ."""
    lines: list[str] = []
    old, new = _object(details.get("old")), _object(details.get("new"))
    for name in sorted({*old, *new}):
        if name not in old or name not in new:
            lines.append(f"  {name}: {'removed' if name in old else 'added'}")
            continue
        before, after = _object(old[name]), _object(new[name])
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                lines.append(f"  {name}.{key} old: {as_json(before.get(key))}")
                lines.append(f"  {name}.{key} new: {as_json(after.get(key))}")
    turns = details.get("turns")
    if turns:
        lines.append(f"  held by: {', '.join(map(str, turns))}")
    return lines


def _object(value: Any) -> Mapping[str, Any]:
    """The members of a JSON object; none where it is none."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


@final
class Console:
    """Where one command speaks. Answers go to standard output. What happens meanwhile goes there as
    JSON lines for programs, and to standard error as sentences for people."""

    def __init__(self, *, json_lines: bool = False) -> None:
        self.json_lines = json_lines

    def say(self, event: str, text: str, /, **fields: Any) -> None:
        """Something happened: `event` and `fields` for programs, `text` for people."""
        if self.json_lines:
            print(as_json({"event": event, "text": text, **fields}), flush=True)
        else:
            print(shown(text), file=sys.stderr, flush=True)

    def answer(self, value: Any, text: str) -> None:
        """What the command was asked for."""
        print(as_json(value) if self.json_lines else shown(text), flush=True)
