"""Reports of executions that are not over: admission and start, where no end followed soon."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.sql import Tx, law
from nerve.hands.ledger.records import read_locked
from nerve.hands.ledger.reports import Speaker, report_present
from nerve.protocol.execution import ExecutionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    executions: Sequence[str]
    speaker: Speaker
    now: int


@law("hands.report_progress", keys=lambda unit: tuple(unit.executions))
async def report_progress(tx: Tx, unit: Progress) -> Sequence[str]:
    """Report each state that was not told yet; returns the executions that are not over."""
    told = await tx.gather([_report(tx, unit, id) for id in unit.executions])
    return [id for id, open in zip(unit.executions, told, strict=True) if open]


async def _report(tx: Tx, unit: Progress, id: str) -> bool:
    row = await read_locked(tx, id)
    if row is None or ExecutionState(row["state"]).is_terminal:
        return False
    if row["told"] != row["state"]:
        await report_present(tx, unit.speaker, row, now=unit.now)
    return True
