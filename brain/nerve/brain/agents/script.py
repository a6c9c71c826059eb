"""What a scripted model answers: rules over the conversation, the same on every host.

This module stands on the standard library alone (and PyYAML for `.yaml`), so that the scripted
server starts fast. A script is a list of rules, or a mapping with `rules`. The first rule whose
`when` fits answers; a rule without `when` answers in its turn: the n-th of them is the n-th answer
after the latest user message. A text alone is a rule with that `text`.

    - when: {user: "rain in (?P<city>\\w+)", round: 1}   # see `Condition`; a text means {last: text}
      calls: [{tool: forecast, arguments: {city: $city}}]
    - when: {tool: forecast}
      text: "In $city: $last"        # $last, $user, $results and the named groups of the patterns
      reasoning: "private"
      usage: {input_tokens: 12, output_tokens: 7}
      delay_seconds: 0.2
      fault: {status: 429, retry_after: 1, times: 2}     # or {cut: arguments}; then it answers

`raw_arguments: '{"a":'` in a call speaks arguments that are not JSON. `finish` overrides the reason
why the answer ended (`stop`, `tool_calls`, `length`, `content_filter`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, Self, cast

Chat = Mapping[str, Any]  # A neutral chat message, as `chat` makes it.
CUTS = ("connection", "text", "arguments")
FINISHES = ("stop", "tool_calls", "length", "content_filter")
_RULE = frozenset(
    ("when", "text", "call", "calls", "reasoning", "usage", "delay_seconds", "fault", "finish")
)
_CONDITION = frozenset(("round", "user", "last", "tool"))
_CALL = frozenset(("tool", "arguments", "raw_arguments"))
_FAULT = frozenset(("status", "retry_after", "cut", "times"))
_USAGE = frozenset(("input_tokens", "output_tokens"))


class ScriptError(ValueError):
    """The script is not one, or has no answer for a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Where a conversation stands: all that a rule may look at."""

    round: int
    user: str
    last: str
    tool: str
    results: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`round` counts the answers after the latest user message from 1; `user` and `last` are
    patterns searched in that message and in the last one; `tool` made the last message."""

    round: int | None = None
    user: re.Pattern[str] | None = None
    last: re.Pattern[str] | None = None
    tool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    tool: str
    arguments: Mapping[str, Any]
    raw_arguments: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How a rule fails `times` times before it answers."""

    status: int | None = None
    retry_after: float | None = None
    cut: str | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    when: Condition | None = None
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str = ""
    usage: Mapping[str, int] | None = None
    delay_seconds: float = 0.0
    fault: Fault | None = None
    finish: str | None = None
    template: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the script says now: a rule with its names filled in, and its fault where one is due."""

    number: int
    rule: Rule
    text: str
    calls: Sequence[ScriptedCall]
    fault: Fault | None


@dataclass(slots=True)
class Script:
    """The rules, and how often each fault has been shown by this process."""

    rules: Sequence[Rule]
    place: str = "script"
    _sequence: list[int] = field(default_factory=list[int])
    _shown: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self._sequence = [n for n, rule in enumerate(self.rules) if rule.when is None]

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a `.yaml`, `.yml` or `.json` file."""
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ScriptError(f"the script {file} cannot be read: {error}") from None
        return cls.from_value(_document(text, file), str(file))

    @classmethod
    def from_value(cls, value: object, place: str = "script") -> Self:
        rules = cast("dict[str, object]", value).get("rules") if isinstance(value, dict) else value
        if not isinstance(rules, (list, tuple)):
            raise ScriptError(f"{place}: a script is a list of rules, or a mapping with `rules`")
        items = cast("Sequence[object]", rules)
        return cls([_rule(item, f"{place}: rule {n}") for n, item in enumerate(items, 1)], place)

    def reply(self, messages: Sequence[Chat]) -> Reply:
        situation = situation_of(messages)
        for number, rule in enumerate(self.rules):
            if rule.when is not None:
                groups = _fits(rule.when, situation)
                if groups is not None:
                    return self._filled(number, rule, situation, groups)
        if 0 < situation.round <= len(self._sequence):
            number = self._sequence[situation.round - 1]
            return self._filled(number, self.rules[number], situation, {})
        raise ScriptError(
            f"{self.place} has no answer for round {situation.round} after"
            f" {situation.user[:80]!r}, where the last message is {situation.last[:80]!r}:"
            " add a rule, or one with `when: {}` that fits always"
        )

    def _filled(
        self, number: int, rule: Rule, situation: Situation, groups: Mapping[str, str]
    ) -> Reply:
        text, calls = rule.text, rule.calls
        if rule.template:
            names = _names(situation, groups)
            text = Template(text).safe_substitute(names)
            calls = tuple(_call_filled(call, names) for call in calls)
        fault = None if rule.fault is None else self._due(number, rule.fault)
        return Reply(number=number + 1, rule=rule, text=text, calls=calls, fault=fault)

    def _due(self, number: int, fault: Fault) -> Fault | None:
        shown = self._shown.get(number, 0)
        if shown >= fault.times:
            return None
        self._shown[number] = shown + 1
        return fault


def situation_of(messages: Sequence[Chat]) -> Situation:
    """Walks back to the latest user message only: its cost does not grow with the history."""
    last, user, tool, rounds = "", "", "", 1
    results: list[str] = []
    for index, message in enumerate(reversed(messages)):
        role = message["role"]
        if index == 0:
            last = text_of(message)
            tool = message.get("tool", "") if role == "tool" else ""
        if role == "user":
            user = last if index == 0 else text_of(message)
            break
        if role == "assistant":
            rounds += 1
        elif role == "tool":
            results.append(text_of(message))
    return Situation(round=rounds, user=user, last=last, tool=tool, results=results[::-1])


def text_of(message: Chat) -> str:
    """The text of a chat message; media count as nothing, data as JSON."""
    text = message.get("text")
    if isinstance(text, str):
        return text
    parts = cast("Sequence[Mapping[str, Any]]", message.get("parts") or ())
    return "".join(
        part["text"] if part.get("type") == "text" else json.dumps(part["value"], sort_keys=True)
        for part in parts
        if part.get("type") in ("text", "structured")
    )


def _fits(when: Condition, situation: Situation) -> Mapping[str, str] | None:
    if when.round is not None and when.round != situation.round:
        return None
    if when.tool is not None and when.tool != situation.tool:
        return None
    groups: dict[str, str] = {}
    for pattern, text in ((when.user, situation.user), (when.last, situation.last)):
        if pattern is not None:
            found = pattern.search(text)
            if found is None:
                return None
            groups |= found.groupdict("")
    return groups


def _names(situation: Situation, groups: Mapping[str, str]) -> dict[str, str]:
    results = "\n".join(situation.results)
    return {"last": situation.last, "user": situation.user, "results": results, **groups}


def _call_filled(call: ScriptedCall, names: Mapping[str, str]) -> ScriptedCall:
    arguments = _deep(call.arguments, names)
    return ScriptedCall(tool=call.tool, arguments=arguments, raw_arguments=call.raw_arguments)


def _deep(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return Template(value).safe_substitute(names)
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: _deep(item, names) for key, item in pairs}
    if isinstance(value, list):
        return [_deep(item, names) for item in cast("list[object]", value)]
    return value


def _document(text: str, file: Path) -> object:
    if file.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ScriptError(f"{file} is not JSON: {error}") from None
    import yaml  # A script in JSON needs no PyYAML.

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScriptError(f"{file} is not YAML: {error}") from None


def _rule(value: object, place: str) -> Rule:
    if isinstance(value, str):
        value = {"text": value}
    body = _mapping(value, place, _RULE)
    calls = body.get("calls", [body["call"]] if "call" in body else [])
    if not isinstance(calls, (list, tuple)):
        raise ScriptError(f"{place}: `calls` is a list of calls")
    finish = body.get("finish")
    if finish is not None and finish not in FINISHES:
        raise ScriptError(f"{place}: `finish` is one of {', '.join(FINISHES)}")
    usage = body.get("usage")
    return Rule(
        when=_condition(body["when"], f"{place}: when") if "when" in body else None,
        text=_text(body.get("text", ""), f"{place}: text"),
        calls=tuple(_call(item, f"{place}: call") for item in cast("Sequence[object]", calls)),
        reasoning=_text(body.get("reasoning", ""), f"{place}: reasoning"),
        usage=None if usage is None else _mapping(usage, f"{place}: usage", _USAGE),
        delay_seconds=float(body.get("delay_seconds", 0)),
        fault=_fault(body["fault"], f"{place}: fault") if "fault" in body else None,
        finish=finish,
        template="$" in json.dumps([body.get("text"), calls]),
    )


def _condition(value: object, place: str) -> Condition:
    if isinstance(value, str):
        value = {"last": value}
    body = _mapping(value, place, _CONDITION)
    patterns: dict[str, re.Pattern[str]] = {}
    for key in ("user", "last"):
        if key in body:
            try:
                patterns[key] = re.compile(str(body[key]), re.IGNORECASE)
            except re.error as error:
                raise ScriptError(f"{place}: `{key}` is not a pattern: {error}") from None
    return Condition(round=body.get("round"), tool=body.get("tool"), **patterns)


def _call(value: object, place: str) -> ScriptedCall:
    body = _mapping(value, place, _CALL)
    if not isinstance(body.get("tool"), str):
        raise ScriptError(f"{place}: name a `tool`")
    arguments = body.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ScriptError(f"{place}: `arguments` is a mapping; use raw_arguments for anything else")
    named = cast("dict[str, Any]", arguments)
    return ScriptedCall(tool=body["tool"], arguments=named, raw_arguments=body.get("raw_arguments"))


def _fault(value: object, place: str) -> Fault:
    body = _mapping(value, place, _FAULT)
    if ("status" in body) == ("cut" in body):
        raise ScriptError(f"{place}: give `status` or `cut`")
    if "cut" in body and body["cut"] not in CUTS:
        raise ScriptError(f"{place}: `cut` is one of {', '.join(CUTS)}")
    return Fault(**body)


def _mapping(value: object, place: str, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScriptError(f"{place}: expected a mapping with {', '.join(sorted(known))}")
    body = cast("dict[str, Any]", value)
    unknown = sorted(str(key) for key in body if key not in known)
    if unknown:
        raise ScriptError(
            f"{place}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    return body


def _text(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    raise ScriptError(f"{place}: expected text")
