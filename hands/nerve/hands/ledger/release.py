"""What a dead host leaves: its running executions become RECOVERING (repeatable) or UNKNOWN."""

from dataclasses import dataclass

from nerve.common.sql import Row, Tx, law, sql
from nerve.hands.ledger.conditions import OWNED
from nerve.hands.ledger.records import read_locked, record_of
from nerve.hands.ledger.reports import Speaker, move
from nerve.hands.state.record import FINISHABLE, lost
from nerve.protocol.execution import Effect, ExecutionState

OWNED_BY = sql(f"select * from execution where host = :host and {OWNED} order by id for update")
REPEAT = sql(
    "update execution set state = :state, effect = :effect, host = null, token = token + 1"
    " where id = :id and token = :token and state = :before"
)


async def release_executions(tx: Tx, host: str, now: int, speaker: Speaker) -> None:
    """Inside the transaction that releases `host` for ever."""
    for row in await tx.all(OWNED_BY, host=host):
        await _lose(tx, row, speaker, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """`entered` is False where the owner knows that it never came to the tool."""

    id: str
    host: str
    token: int
    entered: bool
    speaker: Speaker
    now: int


@law("hands.abandon", keys=lambda unit: (unit.id,))
async def abandon(tx: Tx, unit: Abandon) -> bool:
    """A living host gives up one execution; False where it owns it no more.

    One that was never entered waits for another start, whatever its binding says.
    """
    row = await read_locked(tx, unit.id)
    if row is None or (row["host"], row["token"]) != (unit.host, unit.token):
        return False
    if record_of(row).state not in FINISHABLE:
        return False
    if unit.entered:
        await _lose(tx, row, unit.speaker, unit.now)
    else:
        await _free(tx, row)
    return True


async def _lose(tx: Tx, row: Row, speaker: Speaker, now: int) -> None:
    to = lost(record_of(row))
    assert to is not None, row["id"]
    if to.state.is_terminal:
        await move(tx, speaker, row, to, now=now)
    else:
        await _free(tx, row)


async def _free(tx: Tx, row: Row) -> None:
    await tx.run(
        REPEAT,
        id=row["id"],
        token=row["token"],
        before=row["state"],
        state=ExecutionState.RECOVERING,
        effect=Effect.UNCONFIRMED,
    )
