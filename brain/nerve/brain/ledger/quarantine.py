"""An update that cannot be applied is set aside where an operator sees it, and asked for anew."""

from dataclasses import dataclass

from nerve.common import inbox
from nerve.common.sql import Tx, law, sql
from nerve.protocol.identity import turn_of

ASK_NOW = sql(
    "update intent set next_inquiry_at = :now, outcome ="
    " case when outcome = 'REQUESTED' then 'ADMITTED' else outcome end"
    " where execution = :execution and state = 'OPEN'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    execution: str
    sequence: int
    envelope: bytes
    reason: str
    now: int


@law("brain.set_aside", keys=lambda unit: (turn_of(unit.execution),))
async def set_aside(tx: Tx, unit: SetAside) -> None:
    """Quarantine it; the snapshot that answers the next question closes the prefix."""
    await inbox.quarantine(
        tx,
        execution=unit.execution,
        sequence=unit.sequence,
        envelope=unit.envelope,
        reason=unit.reason,
        now=unit.now,
    )
    # Whoever sent it has admitted the execution: it is asked about, and not sent again.
    await tx.run(ASK_NOW, execution=unit.execution, now=unit.now)
