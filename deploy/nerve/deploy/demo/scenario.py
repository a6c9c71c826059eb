"""What the scripted model answers, made for the logs that are there.

The model is a script and no intelligence. What it reports comes from the tools' results, and whether
it pages again depends on what it was told of the page before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nerve.deploy.demo.logfiles import TROUBLE, Listing, LogFile, find, listing
from nerve.protocol.errors import BadInput

QUESTION = "Checkout is failing. Find out why, and tell the people who must know."
FIRST, SECOND = "payments", "database"
ANSWERS = 6
"""How many answers the investigation needs: each of them is asked for once."""
COUNTED_MAX = 4

Rule = Mapping[str, Any]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The rules of the model, and how many calls its second answer makes at once."""

    rules: Sequence[Rule]
    logs: Listing
    calls: int


def scenario(folder: Path) -> Scenario:
    """Look at the logs and write the script.

    Raises:
        NotFound, BadInput: there is nothing to investigate.
    """
    logs = listing(folder)
    if not logs.files:
        raise BadInput(_nothing(folder, logs), where="--logs", next_step="Name another folder")
    chosen = sorted(logs.files[:COUNTED_MAX], key=lambda each: each.name)
    counts = {each.name: find(each, TROUBLE).matches for each in chosen}
    worst = max(chosen, key=lambda each: counts[each.name])
    calls = [*_readings(chosen, worst), _call("open_ticket", title="Checkout is failing")]
    said = f"Most of the trouble stands in {_escaped(worst.name)}"
    if not counts[worst.name]:
        said = "No log tells of any trouble, which is strange"
    return Scenario(rules=_rules(calls, said), logs=logs, calls=len(calls))


def _readings(chosen: Sequence[LogFile], worst: LogFile) -> list[Rule]:
    counts = [_call("count_trouble", log=_escaped(each.name)) for each in chosen]
    words = ("timeout", "error")
    return [
        *counts,
        *(_call("search_log", log=_escaped(worst.name), words=each) for each in words),
    ]


def _rules(calls: Sequence[Rule], said: str) -> list[Rule]:
    steps = ["list the logs", "count the trouble in each", "tell whoever can mend it"]
    return [
        {
            "when": {"tool": "page_on_call", "last": "changed nothing"},
            "text": f"The page to {SECOND} was not delivered, so I send it again.",
            "calls": [_page(SECOND)],
        },
        {
            "when": {"round": 1},
            "text": "First a plan, and a look at which logs there are.",
            "calls": [_call("plan", steps=steps), _call("list_logs")],
        },
        {
            "when": {"round": 2},
            "text": "I read them all at once, and open a ticket.",
            "calls": calls,
        },
        {
            "when": {"round": 3},
            "text": f"{said}. The people of {FIRST} must know.",
            "calls": [_page(FIRST)],
        },
        {
            "when": {"tool": "page_on_call", "last": f"on call for {FIRST}"},
            "text": f"They will need the people of {SECOND} too.",
            "calls": [_page(SECOND)],
        },
        {
            "when": {"tool": "page_on_call", "last": f"on call for {SECOND}"},
            "text": f"{said}. Those who can mend it are awake.\n$results",
        },
        {"when": {}, "text": "I could not finish the investigation. The last thing said: $last"},
    ]


def _page(team: str) -> Rule:
    return _call("page_on_call", team=team, message="Checkout is failing; see the ticket")


def _call(tool: str, **arguments: Any) -> Rule:
    return {"tool": tool, "arguments": arguments}


def _escaped(name: str) -> str:
    """A file may be named as the script's placeholders are."""
    return name.replace("$", "$$")


def _nothing(folder: Path, logs: Listing) -> str:
    if not logs.skipped:
        return f"{folder} holds no files"
    name, problem = logs.skipped[0]
    more = f", and {len(logs.skipped) - 1} more" if len(logs.skipped) > 1 else ""
    return f"{folder} holds no file that can be read as text: {name} {problem}{more}"
