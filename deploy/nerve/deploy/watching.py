"""Follow one Turn: its committed events as lines, and why it stands still when it does."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from nerve.brain.handles import Turn
from nerve.brain.ledger.queries import turn as turn_row
from nerve.brain.state.turn import TurnPhase
from nerve.brain.watch import TurnResult
from nerve.brain.why import Reason, TurnStatus
from nerve.common.sql import Row, Tx
from nerve.deploy.client import Client, place_option
from nerve.deploy.output import Console, brief, clock_time
from nerve.deploy.presence import brains_of, hands_of, present
from nerve.protocol.content import Message
from nerve.protocol.events import PublicEvent

QUIET_SECONDS = 1.0
_CODES = {TurnPhase.COMPLETED: 0, TurnPhase.FAILED: 1, TurnPhase.CANCELLED: 1}
_STANDS_STILL = frozenset((Reason.NO_HOST, Reason.UNKNOWN_OUTCOME, Reason.BACKOFF, Reason.PAUSED))


async def watch(at: Client, turn: Turn, console: Console, *, after: str | None = None) -> None:
    """Print what happens to the Turn until it has ended."""
    still = asyncio.ensure_future(_tell_why(at, turn, console))
    try:
        async for event in turn.events(after):
            told = sentence(event)
            if told or console.json_lines:
                console.say("event", f"{clock_time(event.at)}  {told}", **event_fields(event))
    finally:
        still.cancel()
        await asyncio.gather(still, return_exceptions=True)


def event_fields(event: PublicEvent) -> dict[str, Any]:
    return {"cursor": event.cursor, **event.to_json()}


async def ended(turn: Turn, console: Console) -> int:
    """Print the result and return its exit code."""
    result = await turn.result()
    console.answer(result_fields(result), result_text(result))
    return _CODES[result.phase]


def result_fields(result: TurnResult) -> dict[str, Any]:
    return {
        "turn": result.turn,
        "session": result.thread.session_key.id,
        "thread": result.thread.id,
        "phase": result.phase,
        "text": result.text,
        "output": result.output,
        "failure": result.failure,
    }


def result_text(result: TurnResult) -> str:
    if result.phase is TurnPhase.COMPLETED:
        return result.text
    if result.failure is not None:
        said = f"{result.failure.get('code')}: {result.failure.get('message')}"
        return f"The Turn {result.turn} {result.phase}: {said}"
    return f"The Turn {result.turn} is {result.phase}."


async def _tell_why(at: Client, turn: Turn, console: Console) -> None:
    """Say once of each reason for standing still; look again every second."""
    told: set[str] = set()
    while True:
        await tell_obstacles(at, turn, console, told)
        await asyncio.sleep(QUIET_SECONDS)


async def tell_obstacles(
    at: Client, turn: Turn, console: Console, told: set[str] | None = None
) -> None:
    """Say what keeps the Turn from moving, except what was `told` before."""
    told = set() if told is None else told
    status = await turn.status()
    for reason, text in await obstacles(at, status):
        if text not in told:
            told.add(text)
            fields = {"turn": turn.id, "reason": reason, "reasons": list(status.reasons)}
            console.say("waiting", text, **fields)


async def obstacles(at: Client, status: TurnStatus) -> list[tuple[str, str]]:
    """What keeps the Turn from moving, seen from outside: hosts that are not there, UNKNOWN, waits."""
    if Reason.ENDED in status.reasons:
        return []
    found: list[tuple[str, str]] = []
    if missing := await _missing_brain(at, status):
        found.append((Reason.NO_HOST, missing))
    found += [
        (reason, text)
        for reason, text in _explained(status)
        if reason in _STANDS_STILL and not (missing and reason is Reason.NO_HOST)
    ]
    routes = {each.route for each in status.executions if each.outcome != "UNKNOWN" and each.route}
    for route in sorted(routes - {"local"}):
        if at.directory is not None and not hands_of(at.directory, route):
            found.append(
                (
                    "NO_HANDS",
                    f"No Hands run for the route {route} here:"
                    f" `nerve hands app.py --route {route}{place_option(at.directory.path)}`"
                    " starts them.",
                )
            )
    return found


def _explained(status: TurnStatus) -> list[tuple[Reason, str]]:
    """Each sentence with its reason; the reasons are without repetition, so the last one repeats."""
    if not status.reasons:
        return []
    reasons = list(status.reasons)
    reasons += [reasons[-1]] * (len(status.why) - len(reasons))
    return list(zip(reasons, status.why, strict=False))


async def _missing_brain(at: Client, status: TurnStatus) -> str:
    if at.directory is None:
        return ""

    async def query(tx: Tx) -> Row:
        return await turn_row(tx, status.turn)

    definition = str((await at.backend.ledger.read(query))["definition"])
    if brains_of(at.directory, definition):
        return ""
    hosts = present(at.directory, "brain")
    gone = [each for each in hosts if each.id == status.owner and not each.alive]
    place = place_option(at.directory.path)
    if gone:
        return (
            f"The host that ran it (pid {gone[0].pid}) is gone and none takes its place yet:"
            f" `nerve brain app.py{place}` starts one, and it goes on where it was."
        )
    named = f"{status.agent} version {status.version}"
    return f"No running host has the agent {named}: `nerve brain app.py{place}` starts one."


Words = Callable[[Mapping[str, Any]], str]


def _tool(payload: Mapping[str, Any]) -> str:
    name = payload.get("tool") or payload.get("call_id") or "a tool"
    execution = payload.get("execution_id")
    return f"{name} ({execution})" if execution else str(name)


def _requested(payload: Mapping[str, Any]) -> str:
    arguments = payload.get("arguments")
    given = "" if not arguments else " " + ", ".join(f"{k}={v!r}" for k, v in arguments.items())
    return f"asks for {_tool(payload)}{given}"


def _received(payload: Mapping[str, Any]) -> str:
    state = payload.get("state") or "an answer"
    reason = f": {payload['reason']}" if payload.get("reason") else ""
    return f"{_tool(payload)} is {state}{reason}"


def _message(payload: Mapping[str, Any]) -> str:
    return Message.model_validate(payload["message"], strict=False).text


def _failure(payload: Mapping[str, Any]) -> str:
    failure: Mapping[str, Any] = payload.get("failure") or {}
    return f"{failure.get('code', '')} {failure.get('message', '')}".strip()


_WORDS: Mapping[str, Words] = {
    "turn.queued": lambda payload: "queued",
    "turn.started": lambda payload: "started",
    "turn.waiting": lambda payload: f"waits ({payload.get('reason')})",
    "turn.cancel_requested": lambda payload: "cancel requested",
    "turn.settling": lambda payload: f"settling, to end as {payload.get('outcome')}",
    "turn.recovery": lambda payload: f"goes on after: {payload.get('reason')}",
    "turn.completed": lambda payload: "completed",
    "turn.failed": lambda payload: f"failed {_failure(payload)}",
    "turn.cancelled": lambda payload: "cancelled",
    "run.started": lambda payload: f"run {payload.get('number')} on {payload.get('host')}",
    "run.ended": lambda payload: f"run {payload.get('state')} {payload.get('reason') or ''}",
    "message.completed": lambda payload: f"says: {_message(payload)}",
    "tool.requested": _requested,
    "tool.admitted": lambda payload: f"{_tool(payload)} was taken by Hands",
    "tool.started": lambda payload: f"{_tool(payload)} runs",
    "tool.completed": _received,
    "tool.received": _received,
    "tool.unknown": lambda payload: f"{_tool(payload)} is UNKNOWN: {payload.get('reason') or ''}",
    "tool.reconciled": lambda payload: f"{_tool(payload)} was reconciled: {payload.get('state')}",
    "tool.cancel_requested": lambda payload: f"asked {_tool(payload)} to stop",
}


def sentence(event: PublicEvent) -> str:
    """The event for a person; empty for those that only programs need."""
    words = _WORDS.get(event.type)
    return "" if words is None else brief(words(event.payload)).strip()
