"""`nerve reconcile`: what is UNKNOWN, and its resolution with evidence by whoever verified it."""

import getpass
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.deploy.client import existing, place_option
from nerve.deploy.databases import address_of, hands_storage
from nerve.deploy.output import Console, brief, day_time, plain
from nerve.deploy.presence import hands_of
from nerve.hands.operations import (
    ExecutionReconciliation,
    ExecutionStore,
    ReconciliationReceipt,
    UnknownExecutionView,
)
from nerve.protocol.canonical import read_strict
from nerve.protocol.errors import BadInput, UnknownExecution, WrongState
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, value_result
from nerve.protocol.identity import check_execution_id

DONE = 0
PREFIX = "hands-"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the operator says on the command line."""

    state: ExecutionState
    evidence: str
    operator: str | None = None
    result: str | None = None
    effect: str | None = None
    request_id: str | None = None
    process_gone: bool = False


async def list_unknown(directory: Path, console: Console, settings: Settings) -> int:
    """Every open UNKNOWN execution of the directory."""
    place = _place(directory, settings)
    found: list[tuple[str, UnknownExecutionView]] = []
    for route in routes_of(place):
        async with _store(place, route, settings) as store:
            found += [(store.route, view) for view in await store.unknown()]
    if console.json_lines:
        listed = [{"route": route, **plain(view)} for route, view in found]
        console.answer({"unknown": listed}, "")
        return DONE
    lines = [line for route, view in found for line in _described(route, view)]
    console.answer(None, "\n".join(lines) if lines else "Nothing is UNKNOWN.")
    return DONE


def _described(route: str, view: UnknownExecutionView) -> list[str]:
    given = ", ".join(f"{name}={value!r}" for name, value in view.arguments.items())
    return [
        f"{view.execution}  {view.tool}({brief(given, 100)}) on the route {route},"
        f" started {day_time(view.started_at)}, UNKNOWN since {day_time(view.unknown_since)}",
        f"  {brief(view.reason or view.code or 'nobody can know whether it took effect')}",
        f"  `nerve reconcile {view.execution} --succeeded|--failed --evidence '...'`",
    ]


async def reconcile(
    execution: str, verdict: Verdict, directory: Path, console: Console, settings: Settings
) -> int:
    """Resolve one UNKNOWN execution; a repeat with the same request id finds the same receipt."""
    place = _place(directory, settings)
    route, execution = await _located(place, execution, settings)
    operator = verdict.operator or getpass.getuser()
    what = ExecutionReconciliation(
        request_id=verdict.request_id or f"o-{uuid.uuid4().hex}",
        operator=operator,
        evidence=verdict.evidence,
        state=verdict.state,
        result=_result(verdict),
        effect=_effect(verdict.effect),
        owner_gone=verdict.process_gone,
    )
    if verdict.request_id is None:
        console.say("request", f"Request id: {what.request_id}", request_id=what.request_id)
    async with _store(place, route, settings) as store:
        receipt = await _resolved(store, execution, what)
    console.answer(receipt, _said(receipt))
    if place is not None and not hands_of(place, route):
        console.say(
            "no_hands",
            f"The Brain hears of it when Hands run for the route {route}:"
            f" `nerve hands app.py --route {route}{place_option(place.path)}`.",
            route=route,
        )
    return DONE


async def _resolved(
    store: ExecutionStore, execution: str, what: ExecutionReconciliation
) -> ReconciliationReceipt:
    known = await store.reconciliation(execution, what.request_id)
    try:
        work = await store.claim(execution, what.operator)
    except WrongState:
        if known is not None and known.state == what.state and known.evidence == what.evidence:
            return known
        raise
    return await store.reconcile(work, what)


def _said(receipt: ReconciliationReceipt) -> str:
    return (
        f"{receipt.execution} is {receipt.state}, effect {receipt.effect}, by {receipt.operator}:"
        f" {receipt.evidence}"
    )


def _result(verdict: Verdict) -> ExecutionResult:
    if verdict.result is None:
        return ExecutionResult()
    value = read_strict(verdict.result.encode(), where="--result")
    return value_result(value)


def _effect(text: str | None) -> Effect | None:
    if text is None:
        return None
    try:
        return Effect(text.lower())
    except ValueError:
        known = ", ".join(effect.value for effect in Effect)
        raise BadInput(
            f"{ascii(text)} is no effect", where="--effect", next_step=f"Use one of {known}"
        ) from None


async def _located(
    place: StateDirectory | None, execution: str, settings: Settings
) -> tuple[str, str]:
    """The route whose ledger has the execution, which may be named by a unique beginning."""
    routes = routes_of(place)
    open_ones: dict[str, str] = {}
    for route in routes:
        async with _store(place, route, settings) as store:
            open_ones |= {view.execution: route for view in await store.unknown(1000)}
            if execution in open_ones:
                return route, execution
            if await _has(store, execution):
                return route, execution
    near = [each for each in open_ones if each.startswith(execution)]
    if len(near) == 1:
        return open_ones[near[0]], near[0]
    if near:
        raise BadInput(
            f"several UNKNOWN executions begin with {execution}: {', '.join(near[:3])}",
            where="EXECUTION",
            next_step="Give more of the id",
        )
    check_execution_id(execution, "execution")
    others = f"UNKNOWN now: {', '.join(list(open_ones)[:3])}" if open_ones else "Nothing is UNKNOWN"
    raise UnknownExecution(
        f"no Hands ledger of {address_of(settings) if place is None else place.path} has the"
        f" execution {execution}",
        where="EXECUTION",
        next_step=others,
    )


async def _has(store: ExecutionStore, execution: str) -> bool:
    try:
        await store.find(execution)
    except UnknownExecution:
        return False
    return True


def _place(directory: Path, settings: Settings) -> StateDirectory | None:
    """None: the ledger is in a database."""
    return None if settings.database else existing(directory)


def routes_of(place: StateDirectory | None) -> list[str]:
    """Routes that have had Hands in this directory; a database serves one, which it knows."""
    if place is None:
        return [""]
    names = [name for name in place.ledgers if name.startswith(PREFIX)]
    return [name.removeprefix(PREFIX) for name in names]


@asynccontextmanager
async def _store(
    place: StateDirectory | None, route: str, settings: Settings
) -> AsyncGenerator[ExecutionStore]:
    deployment = settings.deployment
    if place is None:
        store = await ExecutionStore.over(
            hands_storage(settings, patient=False), deployment=deployment
        )
    else:
        store = await ExecutionStore.open(place.path, route=route, deployment=deployment)
    async with store:
        yield store


def verdict_state(*, succeeded: bool, failed: bool, cancelled: bool) -> ExecutionState:
    """The one state that was named. Raises BadInput."""
    named = [
        state
        for state, given in (
            (ExecutionState.SUCCEEDED, succeeded),
            (ExecutionState.FAILED, failed),
            (ExecutionState.CANCELLED, cancelled),
        )
        if given
    ]
    if len(named) == 1:
        return named[0]
    raise BadInput(
        "say what happened" if not named else "say one thing that happened",
        where="--succeeded|--failed|--cancelled",
        next_step="Give one of them, and --evidence; nothing was changed",
    )
