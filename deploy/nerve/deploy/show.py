"""`nerve ls`, `show`, `why`, `tail` and `cancel`: what stands in a Brain's ledger, for people and programs."""

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nerve.brain.handles import Turn
from nerve.brain.ledger import queries
from nerve.brain.state.turn import TERMINAL
from nerve.brain.views import RunView, StepView, ToolView
from nerve.brain.why import TurnStatus
from nerve.common.settings import Settings
from nerve.common.sql import Row, Tx
from nerve.deploy.client import Client, client
from nerve.deploy.output import Console, brief, clock_time, day_time, plain, took
from nerve.deploy.submit import NAMESPACE
from nerve.deploy.watching import ended, event_fields, obstacles, sentence, watch
from nerve.protocol.errors import NotFound, Timeout
from nerve.protocol.identity import SessionKey

DONE = 0


async def ls(
    directory: Path, console: Console, settings: Settings, *, unfinished: bool, limit: int
) -> int:
    async with client(directory, settings) as at:
        items = await at.runtime.list_turns(unfinished=unfinished, limit=limit)
    if console.json_lines:
        console.answer({"turns": items}, "")
        return DONE
    lines = [
        f"{item.turn}  {item.phase:<9}  {day_time(item.created_at)}"
        f"  {took(item.created_at, item.ended_at):>9}  {item.session}  {item.request_id}"
        for item in items
    ]
    what = "unfinished Turns" if unfinished else "Turns"
    console.answer(items, "\n".join(lines) if lines else f"There are no {what} in {directory}.")
    return DONE


async def why(prefix: str, directory: Path, console: Console, settings: Settings) -> int:
    async with client(directory, settings) as at:
        status = await (await at.turn(prefix)).status()
        said = await explained(at, status)
    console.answer({**_fields(status), "why": said}, "\n".join(said))
    return DONE


async def explained(at: Client, status: TurnStatus) -> list[str]:
    """The ledger's reasons, and what can be seen of hosts from outside."""
    seen = [text for _, text in await obstacles(at, status)]
    return list(dict.fromkeys([*status.why, *seen]))


def _fields(status: TurnStatus) -> dict[str, Any]:
    found: dict[str, Any] = plain(status)
    return found


async def show(prefix: str, directory: Path, console: Console, settings: Settings) -> int:
    async with client(directory, settings) as at:
        turn = await at.turn(prefix)
        status = await turn.status()
        runs, steps = await all_runs(turn), await all_steps(turn)
        tools = await turn.tools()
        receipts = await receipts_of(at, turn)
        said = await explained(at, status)
        result = await turn.result() if status.phase in TERMINAL else None
    if console.json_lines:
        found = {
            **_fields(status),
            "why": said,
            "runs": runs,
            "steps": steps,
            "tools": tools,
            "receipts": receipts,
            "output": None if result is None else result.output,
            "text": None if result is None else result.text,
        }
        console.answer(found, "")
        return DONE
    lines = _head(status)
    lines += _timeline(runs, steps, tools, receipts)
    lines += [f"  {line}" for line in said]
    if result is not None and result.text:
        lines += ["Answer:", result.text]
    console.answer(None, "\n".join(lines))
    return DONE


def _head(status: TurnStatus) -> list[str]:
    lines = [
        f"Turn {status.turn}: {status.phase}",
        f"  agent {status.agent} version {status.version}, thread {status.thread},"
        f" request {status.request_id}",
        f"  admitted {day_time(status.created_at)}, started {clock_time(status.started_at)},"
        f" ended {clock_time(status.ended_at)} {took(status.created_at, status.ended_at)}",
    ]
    if status.failure is not None:
        lines.append(f"  {status.failure.get('code')}: {brief(str(status.failure.get('message')))}")
    return lines


def _timeline(
    runs: Sequence[RunView],
    steps: Sequence[StepView],
    tools: Sequence[ToolView],
    receipts: Sequence[dict[str, Any]],
) -> list[str]:
    """Runs with their Steps, and under each Step the answers and calls that it committed."""
    lines: list[str] = []
    for run in runs:
        reason = f" ({run.reason})" if run.reason else ""
        lines.append(
            f"  Run {run.number} {clock_time(run.started_at)} {took(run.started_at, run.ended_at)}"
            f" {run.state}{reason} on {run.host}"
        )
        for step in (each for each in steps if each.run == run.run):
            lines += _step(step, tools, receipts)
    known = {step.step for step in steps}
    loose = [each for each in tools if each.origin_step not in known]
    for tool in loose:
        lines += _tool(tool, "    ")
    return lines


def _step(
    step: StepView, tools: Sequence[ToolView], receipts: Sequence[dict[str, Any]]
) -> list[str]:
    resumed = f", resumed from {step.resumed_from_step_id}" if step.resumed_from_step_id else ""
    lines = [
        f"    Step {step.number} {clock_time(step.started_at)}"
        f" {took(step.started_at, step.ended_at)} {step.phase} {step.state}{resumed}"
    ]
    for receipt in (each for each in receipts if each["step"] == step.step):
        tokens = [receipt["input_tokens"], receipt["output_tokens"]]
        counted = "" if None in tokens else f", {tokens[0]} tokens in, {tokens[1]} out"
        lines.append(
            f"      answer {receipt['key']} committed {clock_time(receipt['created_at'])}{counted}"
        )
    for tool in (each for each in tools if each.origin_step == step.step):
        lines += _tool(tool, "      ")
    return lines


def _tool(tool: ToolView, indent: str) -> list[str]:
    given = ", ".join(f"{name}={value!r}" for name, value in tool.arguments.items())
    times = [
        f"{name} {clock_time(at)}"
        for name, at in (
            ("requested", tool.requested_at),
            ("admitted", tool.admitted_at),
            ("completed", tool.completed_at),
            ("received", tool.received_at),
            ("applied", tool.applied_at),
        )
        if at is not None
    ]
    lines = [
        f"{indent}tool {tool.tool}({brief(given, 80)}) {tool.execution} {tool.outcome},"
        f" effect {tool.effect}, attempt {tool.attempt}",
        f"{indent}  {', '.join(times)}",
    ]
    if tool.reason:
        lines.append(f"{indent}  {brief(tool.reason)}")
    elif tool.text:
        lines.append(f"{indent}  {brief(tool.text)}")
    return lines


async def all_runs(turn: Turn) -> list[RunView]:
    runs: list[RunView] = []
    while page := await turn.list_runs(after=runs[-1].number if runs else 0):
        runs += page
    return runs


async def all_steps(turn: Turn) -> list[StepView]:
    steps: list[StepView] = []
    run = number = 0
    while page := await turn.list_steps(run=run, after=number):
        steps += page
        run, number = int(steps[-1].run.rpartition(".r")[2]), steps[-1].number
    return steps


async def receipts_of(at: Client, turn: Turn) -> list[dict[str, Any]]:
    async def query(tx: Tx) -> Sequence[Row]:
        return await queries.receipts(tx, turn.id, turn.thread.id)

    rows = await at.backend.ledger.read(query)
    return [{name: row[name] for name in row.keys()} for row in rows]  # noqa: SIM118


async def tail(
    what: str,
    directory: Path,
    console: Console,
    settings: Settings,
    *,
    after: str | None,
    follow: bool,
) -> int:
    """The events of a Turn until it has ended, or of a Session until interrupted."""
    async with client(directory, settings) as at:
        if "/" in what or not await _is_turn(at, what):
            return await _tail_session(at, what, console, after=after, follow=follow)
        turn = await at.turn(what)
        if not follow:
            key = turn.thread.session_key
            return await _pages(at, key, console, after=after, turn=turn)
        await watch(at, turn, console, after=after)
        return await ended(turn, console)


async def _is_turn(at: Client, what: str) -> bool:
    key = SessionKey(NAMESPACE, what)
    try:
        await at.runtime.get_session(key).events(limit=1)
    except NotFound:
        return True
    return False


async def _pages(
    at: Client, key: SessionKey, console: Console, *, after: str | None, turn: Turn | None = None
) -> int:
    cursor = after
    while True:
        page = await at.runtime.watch.page(
            key,
            cursor,
            limit=200,
            thread=None if turn is None else turn.thread.thread,
            turn=None if turn is None else turn.id,
        )
        for event in page.events:
            told = sentence(event) or event.type
            who = "" if event.turn is None else f"{event.turn} "
            console.say("event", f"{clock_time(event.at)}  {who}{told}", **event_fields(event))
        if page.cursor == page.high_watermark:
            return DONE
        cursor = page.cursor


async def _tail_session(
    at: Client, what: str, console: Console, *, after: str | None, follow: bool
) -> int:
    key = SessionKey.parse(what) if "/" in what else SessionKey(NAMESPACE, what)
    changed = asyncio.Event()
    listening = at.backend.wakeups.listen("turn:*", lambda channel: changed.set())
    cursor = after
    try:
        while True:
            changed.clear()
            await _pages(at, key, console, after=cursor)
            page = await at.runtime.watch.page(key, cursor, limit=1000)
            cursor = page.high_watermark
            if not follow:
                return DONE
            try:
                async with asyncio.timeout(at.runtime.settings.scan_seconds):
                    await changed.wait()
            except TimeoutError:
                continue
    finally:
        listening.close()


async def cancel(
    prefix: str,
    directory: Path,
    console: Console,
    settings: Settings,
    *,
    request_id: str | None,
    wait: bool,
    timeout: float | None,
) -> int:
    """Ask for the end of a Turn; an active one ends when its tools are known to have ended."""
    async with client(directory, settings) as at:
        turn = await at.turn(prefix)
        request = request_id or f"c-{uuid.uuid4().hex}"
        await turn.cancel(request)
        if wait:
            console.say("requested", f"Cancel of {turn.id} requested.", request_id=request)
            try:
                async with asyncio.timeout(timeout):
                    await watch(at, turn, console)
            except TimeoutError:
                raise Timeout(
                    f"the Turn {turn.id} has not ended after {timeout:g} s",
                    where="--timeout",
                    next_step=f"`nerve why {turn.id}` says what it waits for",
                    identities={"turn": turn.id},
                ) from None
        status = await turn.status()
        said = "\n".join(await explained(at, status))
    value = {**_fields(status), "request_id": request}
    console.answer(value, f"The Turn {turn.id} is {status.phase}.\n{said}")
    return DONE
