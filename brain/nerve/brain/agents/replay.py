"""The journal of a function agent: what was asked of tools, and what came of it.

    {"role": "call", "call": "call_1", "tool", "arguments"}
    {"role": "result", "call": "call_1", "state", "effect", "value", "text"}

They stand between the `user` entry that began the Turn and the `assistant` entry that ended it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from nerve.brain.agents.chat import Entry
from nerve.brain.agents.local import LocalOutcome
from nerve.brain.harness import ToolCall, ToolOutcome
from nerve.protocol.canonical import JsonValue, canonical_bytes
from nerve.protocol.errors import Incompatible
from nerve.protocol.execution import Effect, ExecutionState

_NO_RESULT = "The Turn ended before this call had a result; whether it took effect is not known."


def call_entry(call: ToolCall) -> Entry:
    arguments = dict(call.arguments)
    return {"role": "call", "call": call.call_id, "tool": call.tool, "arguments": arguments}


def result_entry(result: ToolOutcome) -> Entry:
    return {
        "role": "result",
        "call": result.call_id,
        "state": str(result.state),
        "effect": str(result.effect),
        "value": result.value,
        "text": result.text,
    }


def unanswered_entry(call: str) -> Entry:
    state = {"state": str(ExecutionState.UNKNOWN), "effect": str(Effect.UNCONFIRMED)}
    return {"role": "result", "call": call, **state, "value": None, "text": _NO_RESULT}


def outcome_of(result: ToolOutcome) -> LocalOutcome:
    return LocalOutcome(
        state=result.state, effect=result.effect, value=result.value, text=result.text
    )


@dataclass(frozen=True, slots=True)
class Record:
    """What the current Turn asked before, by call id, and what it knows."""

    calls: Mapping[str, Entry]
    results: dict[str, LocalOutcome]

    @classmethod
    def read(cls, entries: Sequence[JsonValue]) -> "Record":
        """Walks back to where the Turn began."""
        calls: dict[str, Entry] = {}
        results: dict[str, LocalOutcome] = {}
        for item in reversed(entries):
            entry = cast("dict[str, Any]", item)
            if entry["role"] == "call":
                calls[entry["call"]] = entry
            elif entry["role"] == "result":
                results[entry["call"]] = _read_outcome(entry)
            elif entry["role"] == "user":
                break
        return cls(dict(reversed(calls.items())), results)

    def open(self) -> list[str]:
        return [call for call in self.calls if call not in self.results]

    def check_same(self, call: ToolCall) -> None:
        """The call at an ordinal is the same in every repeat."""
        before = self.calls.get(call.call_id)
        if before is not None and not _equal(before, call):
            raise_diverged(call.call_id, _named(before), _named(call_entry(call)))

    def check_used(self, asked: int) -> None:
        """A body that ends has asked for everything that it had asked for before."""
        for call, entry in list(self.calls.items()):
            if ordinal_of(call) > asked:
                raise_diverged(call, _named(entry), "the end of the agent")


def raise_diverged(call: str, before: str, now: str) -> NoReturn:
    raise Incompatible(
        f"the agent asked for {before} as {call} before and for {now} in this repeat",
        where=call,
        next_step=(
            "Let the body ask for the same things in the same order"
            " (ctx.now, ctx.random, ctx.step, ctx.gather), or give the changed agent a new version"
        ),
    )


def ordinal_of(call: str) -> int:
    return int(call.rpartition("_")[2])


def _read_outcome(entry: Mapping[str, Any]) -> LocalOutcome:
    return LocalOutcome(
        state=ExecutionState(entry["state"]),
        effect=Effect(entry["effect"]),
        value=entry["value"],
        text=entry["text"],
    )


def _equal(before: Entry, call: ToolCall) -> bool:
    if before["tool"] != call.tool:
        return False
    then, now = before["arguments"], call.arguments
    return then is now or canonical_bytes(then) == canonical_bytes(now)


def _named(entry: Entry) -> str:
    arguments = canonical_bytes(entry["arguments"]).decode()
    return f"{entry['tool']}({arguments if len(arguments) <= 200 else arguments[:200] + '...'})"
