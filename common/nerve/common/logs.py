"""Structured log lines on the standard library: context, redaction, and at most one line a second per cause.

A cause is the logger with its constant message, or the field `cause`; what was held back is counted and
told with the next line. Secrets never reach a line: passwords in URLs and registered values are masked.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, final

from nerve.common.clock import Clock, SystemClock

_context: ContextVar[Mapping[str, object]] = ContextVar("nerve_log_context", default={})  # noqa: B039
_secrets: set[str] = set()

_URL_PASSWORD = re.compile(r"(?P<head>\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s@/]+(?=@)")
_NAMED_SECRET = re.compile(
    r"(?P<head>(?:password|passwd|secret|token|api[_-]?key|signature|access[_-]?key)[\"']?\s*[=:]\s*"
    r"[\"']?)(?P<value>[^\s\"'&,;}]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_MASK = "***"


def register_secret(value: str) -> None:
    """Mask `value` wherever it would be logged. Very short values are ignored: they would mask words."""
    if len(value) >= 4:
        _secrets.add(value)
        _secrets.add(json.dumps(value)[1:-1])


def redact(text: str) -> str:
    """The text without passwords, tokens and registered secrets."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\g<head>{_MASK}", text)
    text = _NAMED_SECRET.sub(rf"\g<head>{_MASK}", text)
    text = _BEARER.sub(rf"\g<head>{_MASK}", text)
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


@contextmanager
def context(**fields: object) -> Generator[None]:
    """Fields that every line of this task carries for the length of a block."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


@final
class Log:
    """A logger whose message is constant and whose data are fields."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: object) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, *, error: BaseException | None = None, **fields: object) -> None:
        """`error` adds its kind, text and traceback."""
        self._write(logging.ERROR, message, fields, error)

    def _write(
        self,
        level: int,
        message: str,
        fields: dict[str, object],
        error: BaseException | None = None,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"nerve_fields": {**_context.get(), **fields}}
            self._logger.log(level, message, extra=extra, exc_info=error, stacklevel=3)


def get_log(name: str) -> Log:
    return Log(name)


@final
class RateLimit(logging.Filter):
    """At most one line per interval and cause. Lines with the field `always` pass."""

    CAUSES_MAX = 4096

    def __init__(self, *, seconds: float = 1.0, clock: Clock | None = None) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._seen: dict[tuple[str, str, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        fields = _fields(record)
        if fields.get("always"):
            return True
        cause = (record.name, str(record.msg), str(fields.get("cause", "")))
        now = self._clock.monotonic()
        last, held_back = self._seen.get(cause, (float("-inf"), 0))
        if now - last < self._seconds:
            self._seen[cause] = (last, held_back + 1)
            return False
        if len(self._seen) >= self.CAUSES_MAX:
            self._seen.clear()
        self._seen[cause] = (now, 0)
        if held_back:
            record.nerve_held_back = held_back
        return True


@final
class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_visible(record),
        }
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line["error"] = f"{type(error).__name__}: {error}"
            line["traceback"] = "".join(traceback.format_exception(error))
        return redact(json.dumps(line, default=str, ensure_ascii=True))


@final
class HumanFormatter(logging.Formatter):
    """A line for a person's terminal."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_short(value)}" for name, value in _visible(record).items())
        room = record.name.removeprefix("nerve.")
        line = f"{_timestamp(record)[11:23]} {record.levelname:<7} {room}: {record.getMessage()}"
        line = f"{line}  {fields}" if fields else line
        if record.exc_info and (error := record.exc_info[1]) is not None:
            line += "\n" + "".join(traceback.format_exception(error)).rstrip()
        return redact(line)


def configure(
    *,
    level: str = "INFO",
    json_lines: bool = False,
    stream: IO[str] | None = None,
    clock: Clock | None = None,
    others: bool = False,
) -> logging.Handler:
    """Send the lines of `nerve.*` to a stream; other loggers stay the application's.

    `others`: the process is ours, so that what libraries warn of goes the same way: bounded, without secrets.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else HumanFormatter())
    handler.addFilter(RateLimit(clock=clock))
    root = logging.getLogger("nerve")
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
    if others:
        logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    return handler


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "nerve_fields", {})
    return fields


def _visible(record: logging.LogRecord) -> dict[str, object]:
    fields = {name: value for name, value in _fields(record).items() if name != "always"}
    held_back: int = getattr(record, "nerve_held_back", 0)
    return {**fields, "held_back": held_back} if held_back else fields


def _timestamp(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if " " in text or "\n" in text else text
