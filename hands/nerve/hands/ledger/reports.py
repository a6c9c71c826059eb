"""Updates: numbered per execution, kept as sealed, and leaving by the outbox of the same transaction."""

from dataclasses import dataclass

from nerve.common.outbox import OutboxRow, Relay, put
from nerve.common.record import record
from nerve.common.sql import Row, Tx, next_position, sql
from nerve.hands.state.record import Move
from nerve.protocol.commands import parse_address
from nerve.protocol.envelope import Body, Envelope, seal
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState
from nerve.protocol.objects import ObjectRef
from nerve.protocol.topics import updates
from nerve.protocol.updates import ExecutionUpdate, LedgerMark

APPEND = sql(
    "insert into report (execution, sequence, envelope) values (:execution, :sequence, :envelope)"
)
REPLAY = sql(
    "select sequence, envelope from report"
    " where execution = :execution and sequence >= :sequence order by sequence limit :limit"
)
LAST = sql("select envelope from report where execution = :execution and sequence = :sequence")
POSITION = sql("select value from meta where key = 'position'")
MOVE = sql(
    "update execution set state = :state, effect = :effect, host = :host, token = token + 1,"
    " sequence = sequence + 1, told = :state, code = :code, reason = :reason, waiting = null,"
    " ended_at = :ended_at where id = :id and token = :token and state = :before returning sequence"
)
NUMBER = sql(
    "update execution set sequence = sequence + 1, told = state where id = :id returning sequence"
)


@dataclass(slots=True, kw_only=True)
class Speaker:
    """Who reports: this ledger, this route, and the incarnation that speaks at the moment."""

    deployment: str
    route: str
    ledger_id: str
    epoch: int
    host: str
    relay: Relay | None = None
    late_until: int = 0
    """Until when old commands are said to be still coming in (ms)."""

    def mark(self, position: int) -> LedgerMark:
        return LedgerMark(ledger_id=self.ledger_id, epoch=self.epoch, position=position)

    def seal(self, body: Body, *, namespace: str, now: int) -> Envelope:
        return seal(
            body=body,
            deployment=self.deployment,
            namespace=namespace,
            route=self.route,
            issued_at=now,
        )

    def destination(self, address: str) -> str:
        return updates(self.deployment, parse_address(address)[0])


@record
class Report:
    """One update before it is sealed."""

    execution: str
    namespace: str
    cell: str
    sequence: int
    state: ExecutionState
    effect: Effect
    attempt: int
    host: str | None
    request_digest: str | None
    cancel_requested: bool = False
    result: ExecutionResult | None = None
    result_ref: ObjectRef | None = None
    code: str | None = None
    reason: str | None = None


async def report(tx: Tx, speaker: Speaker, what: Report, *, now: int) -> None:
    """Seal, keep and send one update in the caller's transaction."""
    body = ExecutionUpdate(
        execution=what.execution,
        sequence=what.sequence,
        state=what.state,
        effect=what.effect,
        attempt=what.attempt,
        result=what.result,
        result_ref=what.result_ref,
        code=what.code,
        reason=what.reason,
        host=what.host or speaker.host,
        ledger=speaker.mark(await next_position(tx)),
        at=now,
        request_digest=what.request_digest,
        cancel_requested=what.cancel_requested,
        seat=parse_address(what.cell)[1],
        older_commands_arriving=now < speaker.late_until,
        covers_admission=what.sequence == 1 and what.state.is_terminal,
    )
    envelope = speaker.seal(body, namespace=what.namespace, now=now)
    await tx.later(APPEND, execution=what.execution, sequence=what.sequence, envelope=envelope.raw)
    row = OutboxRow(
        id=envelope.id, destination=speaker.destination(what.cell), envelope=envelope.raw
    )
    # Without a relay of its own (an operator's command) the row belongs to whoever scans next.
    owner = None if speaker.relay is None else speaker.host
    await put(tx, [row], host=owner, now=now, relay=speaker.relay)


async def move(
    tx: Tx,
    speaker: Speaker,
    row: Row,
    to: Move,
    *,
    now: int,
    result: ExecutionResult | None = None,
) -> int:
    """Apply `to` to the row just read, and report it. The token rises: whoever owned it is fenced."""
    ended = to.state.is_terminal
    changed = await tx.one(
        MOVE,
        id=row["id"],
        token=row["token"],
        before=row["state"],
        state=to.state,
        effect=to.effect,
        host=None if not ended else row["host"],
        code=to.code,
        reason=to.reason,
        ended_at=now if ended else None,
    )
    assert changed is not None, row["id"]
    sequence: int = changed[0]
    await report(tx, speaker, report_of(row, to, sequence, result), now=now)
    return sequence


def report_of(row: Row, to: Move, sequence: int, result: ExecutionResult | None = None) -> Report:
    return Report(
        execution=row["id"],
        namespace=row["namespace"],
        cell=row["cell"],
        sequence=sequence,
        state=to.state,
        effect=to.effect,
        attempt=row["attempt"],
        host=row["host"],
        request_digest=row["request_digest"],
        cancel_requested=row["cancel_requested_at"] is not None,
        result=result,
        code=to.code,
        reason=to.reason,
    )


async def report_present(
    tx: Tx, speaker: Speaker, row: Row, *, waiting: str | None, now: int
) -> int:
    """Report the state as it is, and what it waits for, under the next number."""
    numbered = await tx.one(NUMBER, id=row["id"])
    assert numbered is not None
    present = Move(
        state=ExecutionState(row["state"]),
        effect=Effect(row["effect"]),
        code="waiting" if waiting else None,
        reason=waiting,
    )
    what = report_of(row, present, numbered[0])
    await report(tx, speaker, what, now=now)
    return what.sequence
