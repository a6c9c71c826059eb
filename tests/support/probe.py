"""Asks a state directory from the outside: submits, waits, resolves UNKNOWNs, and audits what became of it all."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nerve.brain.handles import Turn
from nerve.brain.ledger import queries
from nerve.brain.ledger.backend import SessionBackend
from nerve.brain.runtime import DurableRuntime
from nerve.brain.state.turn import TurnPhase
from nerve.brain.why import Reason
from nerve.common.settings import Settings
from nerve.common.sql import Row, Tx, sql
from nerve.hands.operations import ExecutionReconciliation
from nerve.protocol.errors import NerveError, WrongState
from nerve.protocol.execution import ExecutionResult, ExecutionState
from nerve.protocol.identity import SessionKey, ThreadKey
from support import effects
from support.cluster_place import brain_backend, execution_store, served
from support.cluster_world import REPEATABLE, World
from support.effects import Effects

UNFINISHED = sql("select id from turn where ended_at is null order by created_at, id")
PHASES = sql("select id, phase, session, request_id from turn")
RECEIPTS = sql("select turn, key, created_at from receipt")
EVENTS = sql("select session, sequence, turn, type from event order by session, sequence")
RUNS = sql("select turn, number, host, state from run")
OUTCOMES = sql("select execution, tool, outcome, state, attempt, reason from intent")

ENDS = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})
CANCELLED = {"cancelled": "slow", "cancelled later": "long"}
"""Kinds of Turn that somebody cancels, with what they do."""


@dataclass(slots=True, kw_only=True)
class Acknowledged:
    """A Turn whose submit returned: it may never be lost."""

    turn: str
    kind: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """An execution that ended as UNKNOWN, with what the effect file says of it."""

    execution: str
    attempt: int
    tool: str
    entered: bool
    effects: int


@dataclass(slots=True, kw_only=True)
class Audit:
    """What survived, counted from outside."""

    turns: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    executions: int = 0
    effects: int = 0
    repeated_starts: int = 0
    lost: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])
    wrong_end: list[str] = field(default_factory=list[str])
    asked_again: list[str] = field(default_factory=list[str])
    torn_events: list[str] = field(default_factory=list[str])
    unknown_entered: int = 0
    unknown_between: int = 0
    unknown_repeatable: list[str] = field(default_factory=list[str])

    @property
    def violations(self) -> list[str]:
        return [
            f"{name}: {each}"
            for name in (
                "lost",
                "forgotten",
                "doubled",
                "wrong_end",
                "asked_again",
                "torn_events",
                "unknown_repeatable",
            )
            for each in getattr(self, name)
        ]


async def resolve_unknown(state: Path, effect_file: Path) -> list[Unknown]:
    """Reconcile every open UNKNOWN with what the effect file says; what was found."""
    found: list[Unknown] = []
    async with await execution_store(state) as store:
        for view in await store.unknown():
            counted = Effects.read(effect_file)
            happened = counted.done[view.execution]
            work = await store.claim(view.execution, "chaos")
            what = ExecutionReconciliation(
                request_id=f"chaos/{view.execution}",
                operator="chaos",
                evidence=f"the effect file has {happened} lines",
                state=ExecutionState.SUCCEEDED if happened else ExecutionState.FAILED,
                result=ExecutionResult(),
                owner_gone=happened > 0,
            )
            try:
                await store.reconcile(work, what)
            except WrongState:
                continue  # It may still run: what becomes of it is seen later.
            found.append(
                Unknown(
                    execution=view.execution,
                    attempt=view.attempt,
                    tool=view.tool,
                    entered=counted.was_entered(view.execution, view.attempt),
                    effects=happened,
                )
            )
    return found


class Probe:
    """An API-only host on a state directory that others run on."""

    def __init__(self, state: Path, world: World, backend: SessionBackend, runtime: DurableRuntime):
        self.state = state
        self.world = world
        self.backend = backend
        self.runtime = runtime
        self.acknowledged: dict[str, Acknowledged] = {}
        self.unknown: dict[str, Unknown] = {}
        self._count = 0
        self._prefix = f"{os.getpid()}x{time.monotonic_ns() % 1_000_000}"

    @classmethod
    @asynccontextmanager
    async def open(cls, state: Path, place: Path, settings: Settings) -> AsyncGenerator["Probe"]:
        async with (
            brain_backend(state) as backend,
            DurableRuntime(backend, settings=settings) as runtime,
        ):
            yield cls(state, World(place), backend, runtime)

    async def submit(self, kind: str, note: str = "", *, session: str | None = None) -> Turn:
        """One Turn in a Session of its own, or behind others; it is acknowledged when this returns."""
        self._count += 1
        name = session or f"s{self._prefix}-{self._count}"
        agent = "steps" if kind == "steps" else "chaos"
        text = CANCELLED.get(kind, kind)
        made = await self.runtime.session(SessionKey("n", name), agent=agent)
        turn = await made.submit(f"{self._prefix}-{self._count}", text)
        self.keep(turn.id, kind, note)
        if kind == "cancelled":
            await turn.cancel(f"{self._prefix}-cancel-{self._count}")
        return turn

    def keep(self, turn: str, kind: str, note: str) -> None:
        self.acknowledged[turn] = Acknowledged(turn=turn, kind=kind, note=note)

    def keep_file(self, acks: Path, kinds: str, note: str) -> None:
        """What a client process wrote down before it died."""
        if acks.exists():
            for line in acks.read_text().splitlines():
                self.keep(line.split()[1], kinds, note)

    async def unfinished(self) -> list[str]:
        async def query(tx: Tx) -> list[str]:
            return [row["id"] for row in await tx.all(UNFINISHED)]

        return await self.backend.ledger.read(query)

    async def rows(self, statement: object) -> Sequence[Row]:
        async def query(tx: Tx) -> Sequence[Row]:
            return await tx.all(statement)  # type: ignore[arg-type]  # a Statement

        return await self.backend.ledger.read(query)

    async def resolve(self) -> None:
        """Reconcile what is UNKNOWN by now."""
        if not served() and not (self.state / "hands-hands.db").exists():
            return
        for each in await resolve_unknown(self.state, self.world.effects):
            self.unknown[each.execution] = each

    async def settle(self, seconds: float = 30.0, *, resolve: bool = True) -> list[str]:
        """Wait until every Turn has ended, resolving UNKNOWNs; what has not, with what it waits for."""
        deadline = time.monotonic() + seconds
        while left := await self.unfinished():
            if resolve and await self.any_unknown():
                await self.resolve()
            if time.monotonic() > deadline:
                return [await self._story(turn) for turn in left]
            await asyncio.sleep(0.02)
        return []

    async def until_ended(self, turns: Iterable[str], seconds: float = 20.0) -> None:
        waiting = set(turns)
        deadline = time.monotonic() + seconds
        while waiting := waiting.intersection(await self.unfinished()):
            if time.monotonic() > deadline:
                stories = [await self._story(turn) for turn in sorted(waiting)]
                raise AssertionError("\n".join(stories))
            await asyncio.sleep(0.01)

    async def why(self, turn: str) -> tuple[frozenset[Reason], str]:
        status = await (await self.runtime.get_turn(turn)).status()
        return frozenset(status.reasons), " ".join(status.why)

    async def audit(self, left: Sequence[str] = ()) -> Audit:
        """Compare the acknowledgements, the effects and the model's log with the ledger."""
        audit = Audit(lost=list(left), turns=len(self.acknowledged))
        counted = Effects.read(self.world.effects)
        audit.executions = len({execution for execution, _ in counted.entered})
        audit.effects = sum(counted.done.values())
        audit.doubled = counted.doubled(REPEATABLE)
        audit.repeated_starts = sum(
            counted.starts(execution) - 1
            for execution in {each for each, _ in counted.entered}
            if counted.tools[execution] in REPEATABLE
        )
        await self._audit_turns(audit)
        await self._audit_questions(audit)
        await self._audit_events(audit)
        await self._audit_outcomes(audit, counted)
        for each in self.unknown.values():
            audit.unknown_entered += each.entered
            audit.unknown_between += not each.entered
            if each.tool in REPEATABLE:
                audit.unknown_repeatable.append(each.execution)
        return audit

    async def _audit_turns(self, audit: Audit) -> None:
        phases = {row["id"]: TurnPhase(row["phase"]) for row in await self.rows(PHASES)}
        for turn, known in self.acknowledged.items():
            phase = phases.get(turn)
            if phase is None:
                audit.forgotten.append(f"{turn} ({known.kind}, {known.note})")
                continue
            audit.completed += phase is TurnPhase.COMPLETED
            audit.failed += phase is TurnPhase.FAILED
            audit.cancelled += phase is TurnPhase.CANCELLED
            may_be_cancelled = known.kind in CANCELLED
            if phase in (TurnPhase.FAILED, TurnPhase.CANCELLED) and not may_be_cancelled:
                audit.wrong_end.append(
                    f"{turn} ({known.kind}, {known.note}) is {phase}: {await self._failure(turn)}"
                )

    async def _audit_questions(self, audit: Audit) -> None:
        """No model is asked again after its answer was committed."""
        committed = {
            f"{row['turn']}/{row['key']}": row["created_at"] for row in await self.rows(RECEIPTS)
        }
        for mark in effects.read(self.world.asked):
            if mark.wall_ms > committed.get(mark.subject, mark.wall_ms):
                audit.asked_again.append(f"{mark.subject} by {mark.pid}")

    async def _audit_events(self, audit: Audit) -> None:
        last: dict[str, int] = {}
        ends: dict[str, int] = {}
        for row in await self.rows(EVENTS):
            before = last.get(row["session"], 0)
            if row["sequence"] != before + 1:
                audit.torn_events.append(f"{row['session']}: {before} then {row['sequence']}")
            last[row["session"]] = row["sequence"]
            if row["type"] in ENDS:
                ends[row["turn"]] = ends.get(row["turn"], 0) + 1
        for turn in self.acknowledged:
            over = ends.get(turn, 0)
            if over != 1 and not any(turn in story for story in audit.lost):
                audit.torn_events.append(f"{turn} has {over} ends")

    async def _audit_outcomes(self, audit: Audit, counted: Effects) -> None:
        """What the Brain believes of an execution must not contradict what happened."""
        for row in await self.rows(OUTCOMES):
            execution = row["execution"]
            happened = counted.done[execution]
            if row["outcome"] == "SUCCEEDED" and not happened and row["tool"] != "note":
                audit.wrong_end.append(f"{execution} ({row['tool']}) SUCCEEDED without an effect")
            if row["outcome"] == "UNKNOWN" and row["tool"] in REPEATABLE:
                audit.unknown_repeatable.append(f"{execution} ({row['reason']})")

    async def any_unknown(self) -> bool:
        async def query(tx: Tx) -> bool:
            return bool(await tx.all(queries.OPEN_UNKNOWN, limit=1))

        return await self.backend.ledger.read(query)

    async def _story(self, turn: str) -> str:
        known = self.acknowledged.get(turn)
        reasons, why = await self.why(turn)
        label = "" if known is None else f" ({known.kind}, {known.note})"
        return f"{turn}{label} waits for {sorted(reasons)}: {why}"

    async def _failure(self, turn: str) -> str:
        handle = await self.runtime.get_turn(turn)
        try:
            result = await handle.result(1)
        except NerveError as error:
            return str(error)
        return str(result.failure)


def thread_of(name: str) -> ThreadKey:
    """The main Thread of a Session that `Probe.submit` made."""
    return SessionKey("n", name).thread()
