"""The agent of `nerve demo` and its tools: they read logs, open a ticket and page people.

A ticket and a page are lines that only these functions write, so that anybody can count them from
outside. Their bindings do not say that a repeated start is safe, so Hands never repeat them.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, final

from nerve.brain.agents.http import HttpModel
from nerve.brain.agents.react import ReactAgent
from nerve.common import faults
from nerve.deploy.demo import places
from nerve.deploy.demo.logfiles import TROUBLE, Found, LogFile, find, listing, number_of, size_of
from nerve.protocol.catalog import Catalog
from nerve.protocol.signature import ToolContext

AGENT = "incident"
BEFORE_PAGE = "demo.page.before_effect"
AFTER_PAGE = "demo.page.after_effect"
READING = "demo.read.entered"
# A place to stop the process in the middle of a function; free unless the parent arms it.
faults.register("demo", [READING, BEFORE_PAGE, AFTER_PAGE])


def make(root: Path) -> tuple[ReactAgent, Catalog]:
    """The agent and what Hands run for it, over the folder of one demo."""
    room = _Room(root)
    tools = Catalog(route="hands")
    # Reading leaves nothing behind: it may be repeated, and the binding says so.
    for reading in (room.list_logs, room.count_trouble, room.search_log):
        tools.add_function(reading, idempotent_start=True)
    for acting in (room.open_ticket, room.page_on_call):
        tools.add_function(acting)
    agent = ReactAgent(
        AGENT,
        version="1",
        model=HttpModel(places.model_url(root), "scripted", timeout_seconds=20.0),
        tools=tools,
        local_tools=_local(),
        instructions="You investigate incidents. Page the owners of what is broken, once.",
        max_iters=12,
    )
    return agent, tools


def _local() -> Catalog:
    local = Catalog(route="local")

    @local.tool(idempotent_start=True)
    def plan(steps: list[str]) -> str:
        """Write down what to do. It runs inside the Brain."""
        return f"A plan of {len(steps)} steps: {'; '.join(steps)}."

    return local


@final
class _Room:
    """The tools with the folder they work in."""

    def __init__(self, root: Path) -> None:
        self._logs = places.logs_of(root)
        self._effects = root / places.EFFECTS
        self._calls = root / places.CALLS

    def list_logs(self, context: ToolContext) -> str:
        """The log files that can be read."""
        self._enter("list_logs", context)
        found = listing(self._logs)
        names = ", ".join(each.name for each in found.files) or "none"
        left = f"; {len(found.skipped)} cannot be read as text" if found.skipped else ""
        size = size_of(sum(each.size for each in found.files))
        return f"{number_of(len(found.files), 'log')}, {size}: {names}{left}."

    def count_trouble(self, context: ToolContext, log: str) -> str:
        """How many lines of a log tell of trouble, and from when to when."""
        self._enter("count_trouble", context)
        faults.point(READING)
        file = listing(self._logs).file(log)
        found = find(file, TROUBLE)
        when = f", {found.times[0]} to {found.times[1]}" if found.times else ""
        return (
            f"{_where(file, found)}: {found.matches} of {found.lines} lines tell of trouble{when}."
        )

    def search_log(self, context: ToolContext, log: str, words: str) -> str:
        """The lines of a log that hold some words: how many, and the first."""
        self._enter("search_log", context)
        faults.point(READING)
        file = listing(self._logs).file(log)
        found = find(file, re.compile(re.escape(words.encode()), re.IGNORECASE))
        first = f", the first: {found.first}" if found.first else ""
        lines = number_of(found.matches, "line")
        return f"{_where(file, found)}: {lines} with '{words}'{first}"

    def open_ticket(self, context: ToolContext, title: str) -> str:
        """Open a ticket. To open it twice would be wrong."""
        self._enter("open_ticket", context)
        self._effect({"effect": "ticket", "for": title}, context)
        return f"A ticket is open: {title}."

    def page_on_call(self, context: ToolContext, team: str, message: str) -> str:
        """Wake up whoever is on call for a team. To wake them twice would be wrong."""
        self._enter("page_on_call", context)
        faults.point(BEFORE_PAGE)
        self._effect({"effect": "page", "for": team, "message": message}, context)
        faults.point(AFTER_PAGE)
        return paged(team)

    def _enter(self, tool: str, context: ToolContext) -> None:
        _append(self._calls, {"tool": tool}, context)

    def _effect(self, effect: dict[str, Any], context: ToolContext) -> None:
        _append(self._effects, effect, context)


def paged(team: str) -> str:
    """What a delivered page says."""
    return f"Whoever is on call for {team} was paged."


def _where(file: LogFile, found: Found) -> str:
    if not found.skipped_bytes:
        return file.name
    return f"{file.name} (the end of it, without the first {size_of(found.skipped_bytes)})"


def _append(path: Path, what: dict[str, Any], context: ToolContext) -> None:
    """One line in one write, so that a kill leaves the whole line or none."""
    line = {
        **what,
        "execution": context.execution,
        "attempt": context.attempt,
        "pid": os.getpid(),
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)
