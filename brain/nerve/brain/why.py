"""Why a Turn does not advance, in plain words and in a form that programs read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import orjson

from nerve.brain.ledger import queries
from nerve.brain.ledger.definitions import parse_definition
from nerve.brain.state.turn import TERMINAL, TurnPhase
from nerve.common.sql import Row, Tx
from nerve.protocol.execution import ExecutionResult
from nerve.protocol.version import CURRENT

SAID_CHARACTERS = 300


class Reason(StrEnum):
    """What a Turn waits for."""

    ENDED = "ENDED"
    QUEUED_BEHIND = "QUEUED_BEHIND"
    NO_HOST = "NO_HOST"
    RUNNING = "RUNNING"
    ABOUT_TO_RUN = "ABOUT_TO_RUN"
    TOOLS = "TOOLS"
    UNKNOWN_OUTCOME = "UNKNOWN_OUTCOME"
    BACKOFF = "BACKOFF"
    SETTLING = "SETTLING"
    PAUSED = "PAUSED"
    LEDGER_BLOCKED = "LEDGER_BLOCKED"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenExecution:
    """A tool that has no result yet. `said` is what is known of it, in a sentence."""

    execution: str
    tool: str
    route: str
    outcome: str
    said: str
    cancel_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The stored retry budget after the first failure."""

    failures: int
    limit: int
    retry_at: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStatus:
    """A Turn at one moment. `why` are the sentences for people; `reasons` the same for programs."""

    turn: str
    session: str
    thread: str
    phase: TurnPhase
    agent: str
    version: str
    request_id: str
    reasons: Sequence[Reason]
    why: Sequence[str]
    behind: str | None = None
    owner: str | None = None
    executions: Sequence[OpenExecution] = ()
    recovery: Recovery | None = None
    cancel_requested: bool = False
    created_at: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    failure: dict[str, Any] | None = None


async def status(tx: Tx, id: str, *, thread: str, now: int) -> TurnStatus:
    """Of a Turn of this Thread. Raises UnknownTurn."""
    turn = await queries.turn(tx, id, thread=thread)
    intents = await queries.intents(tx, id, thread)
    kept = {row["execution"]: row for row in await queries.kept_updates(tx, id)}
    open_intents = [
        _open(row, kept.get(row["execution"])) for row in intents if row["state"] == "OPEN"
    ]
    reasons, why = await _reasons(tx, turn, open_intents, now)
    why += filter(None, map(_ended_badly, intents))
    definition = parse_definition(turn["definition"])
    return TurnStatus(
        turn=id,
        session=turn["session"],
        thread=turn["thread"],
        phase=TurnPhase(turn["phase"]),
        agent=definition.agent,
        version=definition.version,
        request_id=turn["request_id"],
        reasons=reasons,
        why=why,
        behind=turn["head"] if turn["head"] != id and turn["ended_at"] is None else None,
        owner=turn["host"] if turn["head"] == id else None,
        executions=open_intents,
        recovery=_recovery(turn),
        cancel_requested=turn["cancel_requested_at"] is not None,
        created_at=turn["created_at"],
        started_at=turn["started_at"],
        ended_at=turn["ended_at"],
        failure=None if turn["failure"] is None else orjson.loads(turn["failure"]),
    )


def blocked_status(found: TurnStatus, blocked: str) -> TurnStatus:
    """Beside its own reasons, nothing moves while the ledger cannot be written."""
    return replace(
        found,
        reasons=[*found.reasons, Reason.LEDGER_BLOCKED],
        why=[*found.why, f"The ledger cannot be written: {blocked}."],
    )


async def _reasons(
    tx: Tx, turn: Row, intents: Sequence[OpenExecution], now: int
) -> tuple[list[Reason], list[str]]:
    if TurnPhase(turn["phase"]) in TERMINAL:
        return [Reason.ENDED], [f"It is over: {turn['phase']}."]
    if turn["head"] != turn["id"]:
        return [Reason.QUEUED_BEHIND], [
            f"It waits behind the Turn {turn['head']} of the same Thread."
        ]
    reasons: list[Reason] = []
    why: list[str] = []
    if turn["cancel_requested_at"] is not None or turn["settle"] is not None:
        reasons.append(Reason.SETTLING)
        word = "cancelled" if turn["cancel_requested_at"] is not None else "failed"
        why.append(f"It is being {word} and ends when its tools are known to have ended.")
    if turn["thread_phase"] == "RUNNING":
        reasons.append(Reason.RUNNING)
        why.append(f"It runs on the host {turn['host']}.")
    elif turn["thread_phase"] == "READY":
        await _ready(tx, turn, now, reasons, why)
    for intent in intents:
        unknown = intent.outcome == "UNKNOWN"
        reasons.append(Reason.UNKNOWN_OUTCOME if unknown else Reason.TOOLS)
        why.append(intent.said)
    if turn["pause_intent"]:
        reasons.append(Reason.PAUSED)
        why.append("It is paused.")
    return list(dict.fromkeys(reasons)), why


async def _ready(tx: Tx, turn: Row, now: int, reasons: list[Reason], why: list[str]) -> None:
    if turn["retry_at"] is not None and turn["retry_at"] > now:
        reasons.append(Reason.BACKOFF)
        seconds = (turn["retry_at"] - now) / 1000
        failed = f"It failed {turn['retry_count']} time(s) and" if turn["retry_count"] else "It"
        why.append(f"{failed} is tried again in {seconds:.1f} s: {turn['retry_reason']}")
        return
    definition = parse_definition(turn["definition"])
    named = f"{definition.agent} version {definition.version}"
    hosts = await queries.live_hosts(tx, "brain")
    if any(turn["definition"] in orjson.loads(host["offers"])["definitions"] for host in hosts):
        reasons.append(Reason.ABOUT_TO_RUN)
        why.append("A host is about to take it.")
        return
    reasons.append(Reason.NO_HOST)
    why.append(f"No live host offers the agent {named}; `nerve brain app.py` starts one.")


def _open(row: Row, kept: Row | None) -> OpenExecution:
    return OpenExecution(
        execution=row["execution"],
        tool=row["tool"],
        route=row["route"] or "",
        outcome=row["outcome"],
        said=_said(row) if kept is None else _said_of_kept(row, kept),
        cancel_requested=row["cancel_requested_at"] is not None,
    )


def _said_of_kept(row: Row, kept: Row) -> str:
    """Its result has come and cannot be recorded."""
    said = f"The result of {row['tool']} ({row['execution']}) has come and is"
    if kept["state"] == "HELD":
        return f"{said} held back, to be tried again: {brief(kept['reason'])}"
    return (
        f"{said} quarantined after {kept['tries']} tries: {brief(kept['reason'])}."
        f" It goes on when that is mended; `nerve quarantine replay {row['execution']}` tries at once."
    )


def _said(row: Row) -> str:
    tool, route, execution = row["tool"], row["route"], row["execution"]
    if row["outcome"] == "UNKNOWN":
        return (
            f"The outcome of {tool} ({execution}) is UNKNOWN: {row['reason'] or 'nobody can know it'}."
            f" It is not run again. Find out what happened and say so with"
            f" `nerve reconcile {execution}`."
        )
    cancel = " A cancel was requested and is not confirmed." if row["cancel_requested_at"] else ""
    if row["outcome"] == "REQUESTED" and row["reason"]:
        return f"{tool} ({execution}) was sent to the route {route}: {row['reason']}.{cancel}"
    if row["outcome"] == "REQUESTED":
        said = f"{tool} ({execution}) was sent to the route {route}; no Hands has confirmed it yet"
        if row["inquiries"]:
            said += (
                f" (asked {row['inquiries']} times). Is `nerve hands app.py --route {route}` running,"
                f" with protocol version {CURRENT.major}.x as this Brain?"
            )
        else:
            said += "."
        return said + cancel
    state = {"ADMITTED": "waits for a slot", "STARTED": "runs", "RECOVERING": "is being recovered"}
    what = state.get(row["outcome"], row["outcome"])
    reason = f": {row['reason']}" if row["reason"] else ""
    return f"{tool} ({execution}) {what} on the route {route}{reason}.{cancel}"


def _ended_badly(row: Row) -> str | None:
    """How a call that did not simply succeed ended, and what that says about its effect."""
    if row["state"] == "OPEN" or row["result"] is None:
        return None
    failed = row["outcome"] != "SUCCEEDED"
    if not failed and b'"placeholder"' not in row["result"]:
        return None
    failure = ExecutionResult.model_validate_json(row["result"]).failure
    if failure is None:
        return None
    call = f"{row['tool']} ({row['execution']})"
    said = brief(failure.message)
    if not failed:
        return f"{call} took effect and its result could not be stored: {said}"
    if row["effect"] == "none":
        return f"{call} proved by {failure.type or failure.code} that it changed nothing: {said}"
    if failure.code == "tool_raised":
        return f"{call} raised, which proves nothing, so its effect is {row['effect']}: {said}"
    return (
        f"{call} ended as {row['outcome']} ({failure.code}), its effect is {row['effect']}: {said}"
    )


def brief(text: str) -> str:
    """One line of it."""
    line = " ".join(text.split())
    return line if len(line) <= SAID_CHARACTERS else f"{line[: SAID_CHARACTERS - 1]}…"


def _recovery(turn: Row) -> Recovery | None:
    if turn["retry_policy"] is None:
        return None
    policy = orjson.loads(turn["retry_policy"])
    return Recovery(
        failures=turn["retry_count"],
        limit=policy["retries"],
        retry_at=turn["retry_at"],
        reason=turn["retry_reason"] or "",
    )
