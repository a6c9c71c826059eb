"""Resolving UNKNOWN: a claim by lease, then audit receipt and ordinary update in one transaction.

A reconciliation is idempotent by its request id: the receipt is looked up before anything else.
"""

from dataclasses import dataclass

from nerve.common.sql import Row, Tx, law, sql
from nerve.hands.ledger.pages import Page, append_page, output_end
from nerve.hands.ledger.records import read_locked, record_of
from nerve.hands.ledger.reports import Speaker, move
from nerve.hands.ledger.seals import sealed
from nerve.hands.state.reconcile import reconcile as decide
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.errors import Fenced, RequestConflict, UnknownExecution, WrongState
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState
from nerve.protocol.output import PageKind

RECEIPT = sql("select * from receipt where request_id = :request_id")
KEEP = sql(
    "insert into receipt (request_id, execution, digest, operator, owner, evidence, state, effect,"
    " sequence, reconciled_at) values (:request_id, :execution, :digest, :operator, :owner,"
    " :evidence, :state, :effect, :sequence, :now)"
)
CLAIM = sql(
    "insert into claim (execution, owner, token, until) values (:execution, :owner, 1, :until)"
    " on conflict (execution) do update set owner = excluded.owner, token = claim.token + 1,"
    " until = excluded.until where claim.until <= :now or claim.owner = excluded.owner"
    " returning token"
)
CLAIMED = sql("select owner, token, until from claim where execution = :execution")
UNCLAIM = sql("delete from claim where execution = :execution")
SEAL = sql("update execution set seal = :seal where id = :id")
HOST = sql("select * from host where id = :id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    execution: str
    owner: str
    until: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a claim found: the execution, and the process that ran it, as it registered itself."""

    token: int
    execution: Row
    host: Row | None


@law("hands.claim_unknown", keys=lambda unit: (unit.execution,))
async def claim(tx: Tx, unit: Claim) -> Claimed:
    """Hold an UNKNOWN execution until `until`. Raises where it is not UNKNOWN or is held."""
    row = await _unknown(tx, unit.execution)
    taken = await tx.one(
        CLAIM, execution=unit.execution, owner=unit.owner, until=unit.until, now=unit.now
    )
    if taken is None:
        held = await tx.one(CLAIMED, execution=unit.execution)
        assert held is not None
        raise WrongState(
            f"execution {unit.execution} is being reconciled by {held['owner']}",
            where="execution",
            next_step=f"wait {max(0, held['until'] - unit.now) // 1000 + 1} s, or ask that person",
        )
    host = None if row["host"] is None else await tx.one(HOST, id=row["host"])
    return Claimed(token=taken["token"], execution=row, host=host)


async def _unknown(tx: Tx, execution: str) -> Row:
    row = await read_locked(tx, execution)
    if row is None:
        raise UnknownExecution(
            f"there is no execution {execution} in this ledger",
            where="execution",
            next_step="list the open ones: `nerve reconcile`",
        )
    if row["state"] != ExecutionState.UNKNOWN:
        raise WrongState(
            f"execution {execution} is {row['state']}, not UNKNOWN",
            where="execution",
            next_step="only an UNKNOWN outcome can be reconciled",
        )
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    request_id: str
    digest: str
    execution: str
    owner: str
    token: int
    operator: str
    evidence: str
    state: ExecutionState
    effect: Effect
    result: ExecutionResult
    speaker: Speaker
    now: int


@law("hands.reconcile", keys=lambda unit: (unit.execution, unit.request_id))
async def reconcile(tx: Tx, unit: Reconcile) -> Row:
    """The receipt, new or found. Raises RequestConflict, Fenced, WrongState."""
    found = await tx.one(RECEIPT, request_id=unit.request_id)
    if found is not None:
        return _same(found, unit)
    row = await _unknown(tx, unit.execution)
    await _check_claim(tx, unit)
    to = decide(record_of(row), unit.state, unit.effect)
    result = await _with_output(tx, row, unit)
    sequence = await move(tx, unit.speaker, row, to, now=unit.now, result=result)
    await tx.run(UNCLAIM, execution=unit.execution)
    await tx.run(
        KEEP,
        request_id=unit.request_id,
        execution=unit.execution,
        digest=unit.digest,
        operator=unit.operator,
        owner=unit.owner,
        evidence=unit.evidence,
        state=unit.state,
        effect=unit.effect,
        sequence=sequence,
        now=unit.now,
    )
    receipt = await tx.one(RECEIPT, request_id=unit.request_id)
    assert receipt is not None
    return receipt


def _same(found: Row, unit: Reconcile) -> Row:
    if found["digest"] != unit.digest:
        raise RequestConflict(
            f"the request {unit.request_id} already reconciled {found['execution']} otherwise",
            where="request id",
            next_step="use another request id, or look at the receipt of this one",
        )
    return found


async def _check_claim(tx: Tx, unit: Reconcile) -> None:
    held = await tx.one(CLAIMED, execution=unit.execution)
    mine = held is not None and (held["owner"], held["token"]) == (unit.owner, unit.token)
    if held is None or not mine or held["until"] <= unit.now:
        raise Fenced(
            f"the claim of {unit.owner} on execution {unit.execution} is over",
            where="execution",
            next_step="claim it again and look at it again, then reconcile",
        )


async def _with_output(tx: Tx, row: Row, unit: Reconcile) -> ExecutionResult:
    """The result with the seal of what output there is; what the dead host still held is a gap."""
    end = await output_end(tx, row["id"], row["attempt"])
    if row["attempt"] == 0:
        return unit.result
    gap = Page(
        kind=PageKind.GAP,
        start=end,
        length=0,
        reason="the host died: output that it had not stored is lost, its length is not known",
    )
    await append_page(tx, row["id"], row["attempt"], gap)
    seal = await sealed(tx, row["id"], row["attempt"])
    await tx.run(SEAL, id=row["id"], seal=canonical_bytes(seal.to_json()).decode())
    return unit.result.model_copy(update={"output": seal})


async def find_receipt(tx: Tx, request_id: str) -> Row | None:
    return await tx.one(RECEIPT, request_id=request_id)
