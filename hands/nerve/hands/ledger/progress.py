"""Reports of executions that are not over: admission and start, where no end followed soon."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.common.sql import Tx, law
from nerve.hands.ledger.records import read_row
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
    still_open: list[str] = []
    for id in unit.executions:
        row = await read_row(tx, id)
        if row is None or ExecutionState(row["state"]).is_terminal:
            continue
        still_open.append(id)
        if row["told"] != row["state"]:
            await report_present(tx, unit.speaker, row, now=unit.now)
    return still_open
