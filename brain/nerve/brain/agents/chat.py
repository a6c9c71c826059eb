"""The journal of an agent: neutral chat messages as JSON, and views on them that copy nothing.

    {"role": "user", "text" | "parts", "turn"}                    `turn`: this message began one
    {"role": "assistant", "text", "calls": [{"id", "tool", "arguments"}], "reasoning"}
    {"role": "tool", "call", "tool", "text"}

The journal is private: reasoning stays in it and never in a Message.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, cast, overload

from nerve.protocol.canonical import JsonValue
from nerve.protocol.content import Message, TextPart

Entry = dict[str, JsonValue]


class Conversation(Sequence[JsonValue]):
    """The committed entries followed by new ones, as one sequence that stays as it was made.

    The committed ones are shared: they only ever grow, and what comes later is not shown.
    """

    __slots__ = ("_border", "_new", "_old")

    def __init__(self, old: Sequence[JsonValue], new: Sequence[JsonValue]) -> None:
        self._old = old
        self._border = len(old)
        self._new = tuple(new)

    def __len__(self) -> int:
        return self._border + len(self._new)

    @overload
    def __getitem__(self, index: int) -> JsonValue: ...
    @overload
    def __getitem__(self, index: slice) -> list[JsonValue]: ...
    def __getitem__(self, index: int | slice) -> JsonValue | list[JsonValue]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        border = self._border
        return self._old[place] if place < border else self._new[place - border]

    def __iter__(self) -> Iterator[JsonValue]:
        return chain(islice(self._old, self._border), self._new)

    def __reversed__(self) -> Iterator[JsonValue]:
        places = range(self._border - 1, -1, -1)
        return chain(reversed(self._new), map(self._old.__getitem__, places))


def user_entry(message: Message, turn: str | None = None) -> Entry:
    parts = message.parts
    first = parts[0] if len(parts) == 1 else None
    entry: Entry = {"role": "user"}
    if isinstance(first, TextPart):
        entry["text"] = first.text
    else:
        entry["parts"] = [part.to_json() for part in parts]
    if turn is not None:
        entry["turn"] = turn
    return entry


def told_entry(text: str) -> Entry:
    """What we tell the model in the place of the user, for instance how to mend its answer."""
    return {"role": "user", "text": text}


def assistant_entry(text: str, calls: Sequence[Entry] = (), reasoning: str | None = None) -> Entry:
    entry: Entry = {"role": "assistant", "text": text}
    if calls:
        entry["calls"] = list(calls)
    if reasoning:
        entry["reasoning"] = reasoning
    return entry


def call_entry(call_id: str, tool: str, arguments: dict[str, JsonValue]) -> Entry:
    return {"id": call_id, "tool": tool, "arguments": arguments}


def tool_entry(call_id: str, tool: str, text: str) -> Entry:
    return {"role": "tool", "call": call_id, "tool": tool, "text": text}


def calls_of(entry: Entry) -> list[Entry]:
    return cast("list[Entry]", entry.get("calls", []))


def open_calls(entries: Sequence[JsonValue]) -> list[Entry]:
    """The calls of the latest answer that have no result yet, in the order they were asked."""
    answered: set[Any] = set()
    for item in reversed(entries):
        entry = cast("Entry", item)
        if entry["role"] == "tool":
            answered.add(entry["call"])
        else:
            return [call for call in calls_of(entry) if call["id"] not in answered]
    return []
