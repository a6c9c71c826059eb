"""Names and identities that survive restarts, and the one way each is spelled and checked."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, NewType

from pydantic import StringConstraints

from nerve.protocol.errors import InvalidName
from nerve.protocol.wire import Wire

Namespace = NewType("Namespace", str)
SessionName = NewType("SessionName", str)
ThreadName = NewType("ThreadName", str)
AgentName = NewType("AgentName", str)
Deployment = NewType("Deployment", str)
Route = NewType("Route", str)
ToolName = NewType("ToolName", str)
SessionId = NewType("SessionId", str)
ThreadId = NewType("ThreadId", str)
TurnId = NewType("TurnId", str)
RunId = NewType("RunId", str)
StepId = NewType("StepId", str)
ExecutionId = NewType("ExecutionId", str)
CallId = NewType("CallId", str)
RequestId = NewType("RequestId", str)
LedgerId = NewType("LedgerId", str)
MessageId = NewType("MessageId", str)
EventId = NewType("EventId", str)

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,127}$"
ROUTE_PATTERN: Final = r"^[a-z0-9][a-z0-9_-]{0,63}$"
TOOL_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
TURN_PATTERN: Final = r"^t[0-9a-hjkmnp-tv-z]{26}$"
EXECUTION_PATTERN: Final = r"^t[0-9a-hjkmnp-tv-z]{26}\.x[1-9][0-9]{0,8}(\.c[1-9][0-9]{0,8})?$"
REQUEST_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f]{1,256}$"
MAIN_THREAD: Final = ThreadName("main")

NameField = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
RouteField = Annotated[str, StringConstraints(pattern=ROUTE_PATTERN)]
ToolField = Annotated[str, StringConstraints(pattern=TOOL_PATTERN)]
TurnField = Annotated[str, StringConstraints(pattern=TURN_PATTERN)]
ExecutionField = Annotated[str, StringConstraints(pattern=EXECUTION_PATTERN)]
RequestField = Annotated[str, StringConstraints(pattern=REQUEST_PATTERN)]
# Ids that we derive, and ids that a model's provider chose: short, printable, without blanks.
IdField = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,400}$")]

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: sorts as the number does.
_DIGITS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]
_NAME = re.compile(NAME_PATTERN[:-1] + r"\Z")
_ROUTE = re.compile(ROUTE_PATTERN[:-1] + r"\Z")
_TOOL = re.compile(TOOL_PATTERN[:-1] + r"\Z")
_TURN = re.compile(TURN_PATTERN[:-1] + r"\Z")
_EXECUTION = re.compile(EXECUTION_PATTERN[:-1] + r"\Z")

Randomness = Callable[[int], bytes]


class Origin(Wire):
    """The Run and Step that asked for a tool; it stays the same whatever happens after."""

    run: IdField
    step: IdField


@dataclass(frozen=True, slots=True, kw_only=False, order=True)
class SessionKey:
    """A Session inside its namespace, which is the tenant."""

    namespace: str
    session: str

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        check_name(self.session, "session")

    @property
    def id(self) -> SessionId:
        return SessionId(f"{self.namespace}/{self.session}")

    def thread(self, thread: str = MAIN_THREAD) -> "ThreadKey":
        return ThreadKey(self.namespace, self.session, thread)

    def __str__(self) -> str:
        return self.id

    @classmethod
    def parse(cls, text: str) -> "SessionKey":
        return cls(*_parts(text, 2, "session id", "namespace/session"))


@dataclass(frozen=True, slots=True, kw_only=False, order=True)
class ThreadKey:
    """A Thread inside its Session."""

    namespace: str
    session: str
    thread: str = MAIN_THREAD

    def __post_init__(self) -> None:
        check_name(self.namespace, "namespace")
        check_name(self.session, "session")
        check_name(self.thread, "thread")

    @property
    def id(self) -> ThreadId:
        return ThreadId(f"{self.namespace}/{self.session}/{self.thread}")

    @property
    def session_key(self) -> SessionKey:
        return SessionKey(self.namespace, self.session)

    def __str__(self) -> str:
        return self.id

    @classmethod
    def parse(cls, text: str) -> "ThreadKey":
        return cls(*_parts(text, 3, "thread id", "namespace/session/thread"))


def check_name(text: str, what: str) -> str:
    """A namespace, session, thread, agent or version."""
    return _matched(
        _NAME, text, what, "1 to 128 of letters, digits and ._:@+=- with a letter or digit first"
    )


def check_route(text: str, what: str = "route") -> Route:
    """A route or deployment: these become names on brokers."""
    rule = "1 to 64 of lowercase letters, digits, _ and - with a letter or digit first"
    return Route(_matched(_ROUTE, text, what, rule))


def check_tool_name(text: str, what: str = "tool") -> ToolName:
    rule = "1 to 64 of letters, digits, _ and - with a letter or _ first"
    return ToolName(_matched(_TOOL, text, what, rule))


def check_request_id(text: str, what: str = "request id") -> RequestId:
    if text.isprintable() and 1 <= len(text) <= 256:
        return RequestId(text)
    raise _invalid(text, what, "1 to 256 printable characters")


def check_turn_id(text: str, what: str = "turn") -> TurnId:
    return TurnId(_matched(_TURN, text, what, "t and 26 characters, as `nerve ls` prints it"))


def check_execution_id(text: str, what: str = "execution") -> ExecutionId:
    rule = "a Turn id, .x and a number, as `nerve show` prints it"
    return ExecutionId(_matched(_EXECUTION, text, what, rule))


def new_turn_id(now_ms: int, randomness: Randomness = os.urandom) -> TurnId:
    """Sorts by the time of its making."""
    number = _uuid7(now_ms, randomness)
    pairs = [_DIGITS[number >> shift & 1023] for shift in range(120, -1, -10)]
    return TurnId("t" + "".join(pairs))


def new_uuid7(now_ms: int, randomness: Randomness = os.urandom) -> str:
    text = f"{_uuid7(now_ms, randomness):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def run_id(turn: str, number: int) -> RunId:
    return RunId(f"{turn}.r{number}")


def step_id(run: str, number: int) -> StepId:
    return StepId(f"{run}.s{number}")


def execution_id(turn: str, number: int) -> ExecutionId:
    """Derived from the ordinal of the call in its Turn, so that a repeat finds the same one."""
    return ExecutionId(f"{turn}.x{number}")


def child_execution_id(execution: str, number: int) -> ExecutionId:
    """The n-th child of a batch."""
    return ExecutionId(f"{execution}.c{number}")


def turn_of(derived: str) -> TurnId:
    """The Turn that a run, step or execution id was derived from."""
    return check_turn_id(derived.partition(".")[0])


def _uuid7(now_ms: int, randomness: Randomness) -> int:
    noise = int.from_bytes(randomness(10), "big")
    high = (now_ms & (1 << 48) - 1) << 16 | 0x7000 | noise >> 68 & 0xFFF
    return high << 64 | 0b10 << 62 | noise & (1 << 62) - 1


def _parts(text: str, count: int, what: str, form: str) -> list[str]:
    parts = text.split("/")
    if len(parts) != count:
        raise _invalid(text, what, form)
    return parts


def _matched(pattern: re.Pattern[str], text: str, what: str, rule: str) -> str:
    if pattern.match(text):
        return text
    raise _invalid(text, what, rule)


def _invalid(text: str, what: str, rule: str) -> InvalidName:
    # ascii() keeps what cannot be stored or printed out of messages and logs.
    shown = ascii(text) if len(text) <= 80 else f"{ascii(text[:80])}... of {len(text)} characters"
    return InvalidName(f"{shown} is not a {what}", where=what, next_step=f"Use {rule}")
