"""What an operator may do to executions: look at UNKNOWN ones, hold one, resolve it with evidence.

No message and no model tool reaches this room. Whoever calls it has verified the outcome by other
means, and names the evidence and the operator; both are kept in the receipt.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

from nerve.common import process
from nerve.common.clock import Clock, SystemClock
from nerve.common.hostview import mark_of
from nerve.common.place import StateDirectory
from nerve.common.sql import Ledger, Row, Tx, open_sqlite, sql
from nerve.common.wakeups import Doorbell
from nerve.hands.ledger import HANDS_SCHEMA
from nerve.hands.ledger.answers import observations, open_unknown
from nerve.hands.ledger.backend import HandsStorage
from nerve.hands.ledger.reconcile import Claim, Reconcile, claim, find_receipt, reconcile
from nerve.hands.ledger.records import read_row
from nerve.hands.ledger.reports import Speaker
from nerve.protocol.canonical import check_text, digest
from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import open_envelope
from nerve.protocol.errors import BadInput, Unauthorized, UnknownExecution, WrongState
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState
from nerve.protocol.identity import check_execution_id, check_name, check_request_id

EVIDENCE_CHARACTERS_MAX = 4096
CLAIM_SECONDS = 300.0

_EFFECTS = {
    ExecutionState.SUCCEEDED: Effect.COMPLETED,
    ExecutionState.FAILED: Effect.NONE,
    ExecutionState.CANCELLED: Effect.NONE,
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownExecutionView:
    """An execution whose outcome nobody knows, with what helps to find out."""

    execution: str
    namespace: str
    tool: str
    tool_version: str
    arguments: dict[str, Any]
    attempt: int
    host: str | None
    code: str | None
    reason: str | None
    started_at: int | None
    unknown_since: int | None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An UNKNOWN execution held for reconciling until `until`; `owner_gone` is what we could prove."""

    view: UnknownExecutionView
    owner: str
    token: int
    until: int
    owner_gone: bool

    @property
    def execution(self) -> str:
        return self.view.execution


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionReconciliation:
    """What an operator verified. `owner_gone`: they also verified that the old process is gone."""

    request_id: str
    operator: str
    evidence: str
    state: ExecutionState
    result: ExecutionResult = field(default_factory=ExecutionResult)
    effect: Effect | None = None
    owner_gone: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationReceipt:
    """The audit record of one reconciliation."""

    request_id: str
    execution: str
    operator: str
    owner: str
    evidence: str
    state: ExecutionState
    effect: Effect
    sequence: int
    reconciled_at: int


@final
class ExecutionStore:
    """Host operations on one Hands ledger, whether or not a worker runs on it."""

    def __init__(
        self,
        ledger: Ledger,
        speaker: Speaker,
        *,
        clock: Clock,
        authorize: Callable[[str, str], bool] | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._speaker = speaker
        self._clock = clock
        self._authorize = authorize
        self._done = done
        self._owned: Callable[[], Awaitable[None]] | None = None

    @classmethod
    async def open(
        cls,
        directory: Path | str,
        *,
        route: str = "hands",
        deployment: str = "local",
        clock: Clock | None = None,
        authorize: Callable[[str, str], bool] | None = None,
    ) -> Self:
        """The ledger of a route in a state directory; a running worker publishes what changes."""
        clock = clock or SystemClock()
        place = StateDirectory.open(Path(directory), create=False)
        path = place.ledger(f"hands-{route}")
        ledger = await open_sqlite(path, HANDS_SCHEMA, clock=clock, create=False)
        identity = ledger.identity
        speaker = Speaker(
            deployment=deployment,
            route=route,
            ledger_id=identity.id,
            epoch=identity.epoch,
            host="operator",
        )
        bell = Doorbell.open(place.path)
        channel = changed_channel(identity.id)
        store = cls(
            ledger, speaker, clock=clock, authorize=authorize, done=lambda: bell.ring(channel)
        )

        async def closing() -> None:
            await ledger.close()
            await asyncio.sleep(0)  # A ring leaves with the next turn of the loop.
            bell.close()

        store._owned = closing
        return store

    @classmethod
    async def over(
        cls,
        storage: HandsStorage,
        *,
        deployment: str = "local",
        clock: Clock | None = None,
        authorize: Callable[[str, str], bool] | None = None,
    ) -> Self:
        """The ledger of a storage that exists, whose hosts hear what changes."""
        clock = clock or SystemClock()
        backend = await storage.open("", clock=clock, observe=None, create=False)
        identity = backend.ledger.identity
        speaker = Speaker(
            deployment=deployment,
            route=await backend.ledger.read(_served),
            ledger_id=identity.id,
            epoch=identity.epoch,
            host="operator",
        )
        bells, channel = backend.wakeups, changed_channel(identity.id)

        def done() -> None:
            if bells is not None:
                bells.ring(channel)

        store = cls(backend.ledger, speaker, clock=clock, authorize=authorize, done=done)
        store._owned = backend.close
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned()

    @property
    def route(self) -> str:
        return self._speaker.route

    @property
    def ledger_id(self) -> str:
        """Whose bell to ring after a change."""
        return self._speaker.ledger_id

    async def unknown(self, limit: int = 100) -> list[UnknownExecutionView]:
        """The oldest open UNKNOWN executions."""
        rows = await self._ledger.read(lambda tx: open_unknown(tx, limit))
        return [_view(row) for row in rows]

    async def observations(self, execution: str) -> Sequence[Row]:
        """Results that came from an owner which had lost the execution: evidence, never applied."""
        return await self._ledger.read(lambda tx: observations(tx, execution))

    async def reconciliation(self, execution: str, request_id: str) -> ReconciliationReceipt | None:
        """The receipt of an earlier reconciliation: look here first, then claim."""
        check_execution_id(execution)
        check_request_id(request_id)
        row = await self._ledger.read(lambda tx: find_receipt(tx, request_id))
        if row is None:
            return None
        if row["execution"] != execution:
            raise BadInput(
                f"the request {request_id} reconciled {row['execution']}, not {execution}",
                where="request id",
                next_step="use another request id",
            )
        return _receipt(row)

    async def claim(self, execution: str, owner: str, lease_seconds: float = CLAIM_SECONDS) -> Work:
        """Hold an UNKNOWN execution, so that two operators do not resolve it at once."""
        check_execution_id(execution)
        check_name(owner, "owner")
        now = self._clock.now_ms()
        until = now + int(lease_seconds * 1000)
        found = await self._ledger.commit(
            claim, Claim(execution=execution, owner=owner, until=until, now=now)
        )
        gone = found.host is None or process.proven_gone(
            mark_of(found.host), one_machine=self._ledger.one_machine
        )
        return Work(
            view=_view(found.execution),
            owner=owner,
            token=found.token,
            until=until,
            owner_gone=gone,
        )

    async def reconcile(self, work: Work, what: ExecutionReconciliation) -> ReconciliationReceipt:
        """Commit the verified end, its receipt and the ordinary update in one transaction.

        Repeating it with the same request id and content returns the same receipt.

        Raises:
            Unauthorized: the operator may not do this.
            RequestConflict: the request id was used for something else.
            Fenced: the claim ran out, or another one holds it.
            WrongState: it is not UNKNOWN; or its former process may still be running.
        """
        self._check(work, what)
        effect = what.effect or _EFFECTS.get(what.state, Effect.UNCONFIRMED)
        unit = Reconcile(
            request_id=what.request_id,
            digest=_digest(work.execution, what, effect),
            execution=work.execution,
            owner=work.owner,
            token=work.token,
            operator=what.operator,
            evidence=what.evidence,
            state=what.state,
            effect=effect,
            result=what.result,
            speaker=self._speaker,
            now=self._clock.now_ms(),
        )
        row = await self._ledger.commit(reconcile, unit)
        self._done()
        return _receipt(row)

    async def find(self, execution: str) -> Row:
        """The row as it stands, for `why`. Raises UnknownExecution."""
        row = await self._ledger.read(lambda tx: read_row(tx, execution))
        if row is None:
            raise UnknownExecution(
                f"this Hands ledger has no execution {execution}",
                where="execution",
                next_step="it was not admitted here yet, or was forgotten long after its end",
            )
        return row

    def _check(self, work: Work, what: ExecutionReconciliation) -> None:
        check_request_id(what.request_id)
        check_name(what.operator, "operator")
        check_text(what.evidence, "evidence")
        if not 1 <= len(what.evidence.strip()) <= EVIDENCE_CHARACTERS_MAX:
            raise BadInput(
                f"the evidence has {len(what.evidence)} characters",
                where="evidence",
                next_step=f"say where it can be verified, in 1 to {EVIDENCE_CHARACTERS_MAX}",
            )
        if self._authorize is not None and not self._authorize(what.operator, work.execution):
            raise Unauthorized(
                f"{what.operator} may not reconcile {work.execution}",
                where="operator",
                next_step="ask whoever runs this Hands host",
            )
        if not (work.owner_gone or what.owner_gone):
            raise WrongState(
                f"the process that ran {work.execution} is not proven to be gone",
                where="owner_gone",
                next_step="end that process, or confirm that it cannot act any more",
            )


NEWEST_ROLE = sql(
    "select role from host where role like 'hands:%' order by registered_at desc limit 1"
)


async def _served(tx: Tx) -> str:
    """The route whose hosts use this ledger, as they registered themselves."""
    row = await tx.one(NEWEST_ROLE)
    return "hands" if row is None else str(row["role"]).partition(":")[2]


def changed_channel(ledger_id: str) -> str:
    """Where workers of a ledger hear that somebody else changed it."""
    return f"hands/{ledger_id}/changed"


def _digest(execution: str, what: ExecutionReconciliation, effect: Effect) -> str:
    return digest(
        {
            "effect": str(effect),
            "evidence": what.evidence,
            "execution": execution,
            "operator": what.operator,
            "result": what.result.to_json(),
            "state": str(what.state),
        }
    )


def _view(row: Row) -> UnknownExecutionView:
    command = None if row["command"] is None else open_envelope(row["command"]).body
    return UnknownExecutionView(
        execution=row["id"],
        namespace=row["namespace"],
        tool=row["tool"],
        tool_version=row["tool_version"],
        arguments=_arguments(command) if isinstance(command, StartCommand) else {},
        attempt=row["attempt"],
        host=row["host"],
        code=row["code"],
        reason=row["reason"],
        started_at=row["started_at"],
        unknown_since=row["ended_at"],
    )


def _arguments(command: StartCommand) -> dict[str, Any]:
    """What it was called with; of large ones, where they stand."""
    ref = command.arguments_ref
    return command.arguments if ref is None else {"stored": f"{ref.scope}/{ref.digest}"}


def _receipt(row: Row) -> ReconciliationReceipt:
    return ReconciliationReceipt(
        request_id=row["request_id"],
        execution=row["execution"],
        operator=row["operator"],
        owner=row["owner"],
        evidence=row["evidence"],
        state=ExecutionState(row["state"]),
        effect=Effect(row["effect"]),
        sequence=row["sequence"],
        reconciled_at=row["reconciled_at"],
    )
