"""Reads what a model said into what may be stored and run; the result of the reading is the receipt.

A call that cannot be run carries its problem, a text that goes back to the model. An answer that
cannot be kept at all is discarded: the attempt failed, and nothing of it is used.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from nerve.brain.agents.chat import Entry, assistant_entry, call_entry
from nerve.brain.agents.local import storable
from nerve.brain.agents.models import Finish, ModelAnswer, ModelAnswerDiscarded, ModelCall
from nerve.protocol.canonical import JsonValue, check_text, check_value, read_strict
from nerve.protocol.errors import InvalidJSON, NerveError, TooLarge

ARGUMENTS_BYTES_MAX = 768 * 1024
SHOWN_CHARACTERS = 1000
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")

# Checks the arguments of a named tool; raises UnknownTool or InvalidArguments.
Check = Callable[[str, JsonValue], Mapping[str, JsonValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A tool call that was read; with a `problem` it is answered and never run."""

    call_id: str
    tool: str
    arguments: dict[str, JsonValue]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A model answer that was read, as its receipt keeps it."""

    text: str
    calls: Sequence[Call]
    reasoning: str
    finish: Finish

    def entry(self) -> Entry:
        """The journal's form."""
        calls = [call_entry(call.call_id, call.tool, call.arguments) for call in self.calls]
        return assistant_entry(self.text, calls, self.reasoning)

    def receipt(self, model: str) -> JsonValue:
        value: dict[str, JsonValue] = {
            "model": model,
            "text": self.text,
            "finish": str(self.finish),
            "calls": [_kept(call) for call in self.calls],
        }
        if self.reasoning:
            value["reasoning"] = self.reasoning
        return value


def restored(receipt: JsonValue) -> Answer:
    kept = cast("Mapping[str, Any]", receipt)
    return Answer(
        text=kept["text"],
        calls=[
            Call(
                call_id=call["id"],
                tool=call["tool"],
                arguments=call["arguments"],
                problem=call.get("problem"),
            )
            for call in kept["calls"]
        ],
        reasoning=kept.get("reasoning", ""),
        finish=Finish(kept["finish"]),
    )


def call_id(ordinal: int, index: int) -> str:
    """Ours, not the model's: some providers use one id again and again."""
    return f"call_{ordinal}_{index + 1}"


def read_answer(said: ModelAnswer, ordinal: int, check: Check, where: str) -> Answer:
    """The answer to the Turn's `ordinal`-th question."""
    try:
        text = check_text(said.text, where)
    except InvalidJSON as error:
        raise ModelAnswerDiscarded(
            f"the model's text cannot be stored: {error.message}", where=where
        ) from None
    if not said.calls and not text.strip() and said.finish is not Finish.FILTERED:
        raise ModelAnswerDiscarded(
            f"the model said nothing (it ended by {said.finish})", where=where
        )
    return Answer(
        text=text,
        calls=[_read(call, call_id(ordinal, n), check) for n, call in enumerate(said.calls)],
        reasoning=storable(said.reasoning) if said.reasoning else "",
        finish=said.finish,
    )


def _read(call: ModelCall, identity: str, check: Check) -> Call:
    tool = _NOT_A_NAME.sub("_", call.tool)[:64] or "unnamed"
    arguments: JsonValue = None
    try:
        arguments = _value(call)
        checked = check(call.tool, arguments)
    except NerveError as error:
        unreadable: dict[str, JsonValue] = {"unreadable": _shown(call)}
        kept = arguments if isinstance(arguments, dict) else unreadable
        return Call(call_id=identity, tool=tool, arguments=kept, problem=_problem(error))
    return Call(call_id=identity, tool=call.tool, arguments=cast("dict[str, JsonValue]", checked))


def _value(call: ModelCall) -> JsonValue:
    if isinstance(call.arguments, str):
        return read_strict(call.arguments, bytes_max=ARGUMENTS_BYTES_MAX, where="arguments")
    return check_value(call.arguments, "arguments")


def _problem(error: NerveError) -> str:
    if isinstance(error, TooLarge):
        return f"The call was not run: {error.message}. Send less at once."
    if isinstance(error, InvalidJSON):
        return (
            f"The call was not run: its arguments are not usable: {error.message}"
            f" (at {error.where}). {error.next_step}, and call the tool again."
        )
    return f"The call was not run: {error}"


def _shown(call: ModelCall) -> str:
    return storable(str(call.arguments)[:SHOWN_CHARACTERS])


def _kept(call: Call) -> JsonValue:
    kept: Entry = {"id": call.call_id, "tool": call.tool, "arguments": call.arguments}
    if call.problem is not None:
        kept["problem"] = call.problem
    return kept
