"""Executions whose binding no host here has: they wait with that reason, then fail without effect.

Any replica admits; only one whose catalog has name, version and digest starts. Another digest under
the same name and version on every live host is a mismatch and fails at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from nerve.common.sql import ALONE, Row, Tx, law, sql
from nerve.hands.ledger.conditions import READY
from nerve.hands.ledger.records import record_of
from nerve.hands.ledger.reports import Speaker, move
from nerve.hands.state.record import Move, Record
from nerve.protocol.errors import BindingMismatch, DefinitionMissing, UnknownTool
from nerve.protocol.execution import ExecutionResult, ExecutionState, failed_result

OFFERS = sql("select offers from host where state = 'LIVE'")
OF_BINDING = sql(
    f"select * from execution where {READY} and binding_digest = :binding_digest"
    " order by admitted_at, id limit 100 for update skip locked"
)
WAIT = sql(
    "update execution set waiting = :reason where id = :id and"
    " (waiting is null or waiting <> :reason)"
)


def offer_key(tool: str, version: str) -> str:
    return f"{tool}@{version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    binding_digests: Sequence[str]
    missing_ms: int
    speaker: Speaker
    now: int


@law("hands.fail_missing", keys=lambda unit: (ALONE, *unit.binding_digests))
async def fail_missing(tx: Tx, unit: Missing) -> int:
    """How many executions ended because no live host has their binding."""
    offers = [orjson.loads(row["offers"]).get("tools", {}) for row in await tx.all(OFFERS)]
    failed = 0
    for each in unit.binding_digests:
        if any(each in tools.values() for tools in offers):
            continue
        for row in await tx.all(OF_BINDING, binding_digest=each):
            failed += await _judge(tx, unit, row, offers)
    return failed


async def _judge(tx: Tx, unit: Missing, row: Row, offers: Sequence[Mapping[str, str]]) -> bool:
    key = offer_key(row["tool"], row["tool_version"])
    mismatch = bool(offers) and all(key in tools for tools in offers)
    expired = unit.now >= row["admitted_at"] + unit.missing_ms
    reason = (
        f"every live host of the route has {key} with another definition"
        if mismatch
        else f"no live host of the route has {key}"
    )
    if not mismatch and not expired:
        await tx.run(WAIT, id=row["id"], reason=reason)
        return False
    result = _result(row, reason, mismatch=mismatch, known=any(key in each for each in offers))
    failure = result.failure
    assert failure is not None
    to = _failed(record_of(row), failure.code, failure.message)
    await move(tx, unit.speaker, row, to, now=unit.now, result=result)
    return True


def _failed(record: Record, code: str, reason: str) -> Move:
    effect = record.effect  # An earlier attempt of a repeatable tool may have had its effect.
    return Move(state=ExecutionState.FAILED, effect=effect, code=code, reason=reason).of(record)


def _result(row: Row, reason: str, *, mismatch: bool, known: bool) -> ExecutionResult:
    where = f"tool {row['tool']}"
    if mismatch:
        return failed_result(
            BindingMismatch(
                reason,
                where=where,
                next_step="give the changed tool a new version, and submit again",
                details={"binding_digest": row["binding_digest"]},
            )
        )
    kind = DefinitionMissing if known else UnknownTool
    return failed_result(
        kind(
            reason,
            where=where,
            next_step="start a Hands host whose catalog has this tool and version",
        )
    )
