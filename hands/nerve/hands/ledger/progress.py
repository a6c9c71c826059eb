"""Reports of executions that are not over: admission and start, where no end followed soon."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nerve.common.sql import Row, Tx, law
from nerve.hands.ledger.records import read_locked
from nerve.hands.ledger.reports import Speaker, report_present
from nerve.hands.state.record import STARTABLE
from nerve.protocol.execution import ExecutionState

Obstacle = Callable[[str, str, str], str | None]
"""`obstacle(tool, version, namespace)`: why such a call does not start on this host now."""


def waits_for(row: Row, obstacle: Obstacle) -> str | None:
    """Why an execution that nobody runs does not start, as far as this host can tell."""
    if row["waiting"] or row["host"] is not None or ExecutionState(row["state"]) not in STARTABLE:
        reason: str | None = row["waiting"]
        return reason
    return obstacle(row["tool"], row["tool_version"], row["namespace"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    executions: Sequence[str]
    speaker: Speaker
    obstacle: Obstacle
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
        waiting = waits_for(row, unit.obstacle)
        await report_present(tx, unit.speaker, row, waiting=waiting, now=unit.now)
    return True
