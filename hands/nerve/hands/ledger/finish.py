"""The end of a run: sealed output, result, update and outbox in one transaction, fenced by owner."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.large import refer
from nerve.common.record import record
from nerve.common.sql import Tx, law, sql
from nerve.hands.ledger.conditions import OWNED
from nerve.hands.ledger.pages import Page, append_pages
from nerve.hands.ledger.reports import Report, Speaker, report
from nerve.hands.state.record import Move
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.execution import ExecutionResult
from nerve.protocol.objects import ObjectRef
from nerve.protocol.output import OutputSeal

FINISH = sql(
    "update execution set state = :state, effect = :effect, code = :code, reason = :reason,"
    " ended_at = :now, sequence = sequence + 1, told = :state, seal = :seal"
    f" where id = :id and host = :host and token = :token and {OWNED}"
    " returning sequence, cell, namespace, request_digest, attempt, cancel_requested_at"
)
MINE = sql("select sequence from execution where id = :id and host = :host and token = :token")
OBSERVE = sql(
    "insert into observation"
    " (execution, source, host, token, attempt, state, effect, result, observed_at)"
    " values (:execution, :source, :host, :token, :attempt, :state, :effect, :result, :now)"
)


@record
class Finish:
    id: str
    host: str
    token: int
    attempt: int
    move: Move
    result: ExecutionResult | None
    result_ref: ObjectRef | None = None
    """Where the result stands, if it is too large for its update."""
    pages: Sequence[Page]
    seal: OutputSeal | None
    speaker: Speaker
    now: int


@law("hands.finish", keys=lambda unit: (unit.id,))
async def finish(tx: Tx, unit: Finish) -> int | None:
    """The sequence of the terminal update; None where another owns it: then it is an observation."""
    to = unit.move
    row = await tx.one(
        FINISH,
        id=unit.id,
        host=unit.host,
        token=unit.token,
        state=to.state,
        effect=to.effect,
        code=to.code,
        reason=to.reason,
        seal=None if unit.seal is None else canonical_bytes(unit.seal.to_json()).decode(),
        now=unit.now,
    )
    if row is None:
        return await _late(tx, unit)
    if unit.result_ref is not None:
        await refer(tx, [unit.result_ref], now=unit.now)
    if unit.pages:
        await append_pages(tx, unit.id, unit.attempt, unit.pages)
    what = Report(
        execution=unit.id,
        namespace=row["namespace"],
        cell=row["cell"],
        sequence=row["sequence"],
        state=to.state,
        effect=to.effect,
        attempt=row["attempt"],
        host=unit.host,
        request_digest=row["request_digest"],
        cancel_requested=row["cancel_requested_at"] is not None,
        result=unit.result if unit.result_ref is None else None,
        result_ref=unit.result_ref,
        code=to.code,
        reason=to.reason,
    )
    await report(tx, unit.speaker, what, now=unit.now)
    return what.sequence


async def _late(tx: Tx, unit: Finish) -> int | None:
    mine = await tx.one(MINE, id=unit.id, host=unit.host, token=unit.token)
    if mine is not None:
        # Releasing raises the token, so this very end was committed and its answer was lost.
        return int(mine["sequence"])
    fenced = Observation(
        execution=unit.id,
        source="fenced_owner",
        host=unit.host,
        token=unit.token,
        attempt=unit.attempt,
        move=unit.move,
        result=unit.result,
        now=unit.now,
    )
    await observe.apply(tx, fenced)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A result that does not count. `source` says why: fenced_owner or late_thread."""

    execution: str
    source: str
    host: str
    token: int
    attempt: int
    move: Move
    result: ExecutionResult | None
    now: int


@law("hands.observe", keys=lambda unit: (unit.execution,))
async def observe(tx: Tx, unit: Observation) -> None:
    """Keep it for whoever has to find out what happened; it is never applied by itself."""
    result = None if unit.result is None else canonical_bytes(unit.result.to_json()).decode()
    await tx.run(
        OBSERVE,
        execution=unit.execution,
        source=unit.source,
        host=unit.host,
        token=unit.token,
        attempt=unit.attempt,
        state=unit.move.state,
        effect=unit.move.effect,
        result=result,
        now=unit.now,
    )
