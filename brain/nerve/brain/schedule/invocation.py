"""One Run: from restore to its classified end, or the settlement of a Turn that is to end."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from nerve.brain.harness import (
    Checkpoint,
    Facts,
    Failed,
    Finished,
    Frame,
    Harness,
    Outcome,
    Parked,
)
from nerve.brain.ledger.advance import advance
from nerve.brain.ledger.claim import Claimed, GiveBack, give_back
from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.step_unit import (
    SETTLE,
    Advance,
    NewCheckpoint,
    NewReceipt,
    Next,
    Place,
    RetryAt,
    Verdict,
)
from nerve.brain.schedule import outcome as made
from nerve.brain.schedule.failures import (
    BLAMELESS_DELAY_MS,
    BLAMELESS_DOUBLINGS,
    SET_BACK_DELAY_MS,
    CancelFirst,
    Classify,
    NotCommitted,
    committed,
    said,
)
from nerve.brain.schedule.frames import Frames
from nerve.brain.schedule.local_calls import told_of
from nerve.brain.schedule.run_host import Emit, RunHost
from nerve.brain.schedule.stowing import lay_down, stow
from nerve.brain.state.recovery import Exhausted, RecoveryPolicy, after_failure
from nerve.brain.state.turn import Settle, settled_as
from nerve.brain.tools.messages import Messages
from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.large import Large
from nerve.common.logs import get_log
from nerve.common.outbox import Relay
from nerve.common.sql import Ledger
from nerve.protocol.errors import (
    Damaged,
    Fenced,
    LedgerUnavailable,
    NerveError,
    Unavailable,
)
from nerve.protocol.objects import ObjectRef

_log = get_log("nerve.brain.invocation")

faults.register(
    "brain",
    ["brain.run.restored", "brain.run.before_advance", "brain.run.after_advance"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What every invocation of one host shares."""

    ledger: Ledger
    host: str
    clock: Clock
    frames: Frames
    messages: Messages
    relay: Relay
    emit: Emit
    classify: Classify
    policy: RecoveryPolicy
    first_inquiry_ms: int
    large: Large | None = None


class Invocation:
    """Runs one claimed Thread until it is parked, over, given back or lost."""

    def __init__(self, office: Office, claimed: Claimed, agent: Harness) -> None:
        self._office = office
        self._agent = agent
        self._digest = claimed.digest
        self._step = 1
        self.claimed = claimed
        self.ended = False
        self.host = RunHost(
            office.ledger,
            claimed.turn,
            may_have_receipts=claimed.run > 1
            and (agent.flags.replays or claimed.lost_step is not None),
            commit_receipt=self._commit_receipt,
            emit=office.emit,
        )

    async def run(self) -> Verdict:
        """Raises nothing that belongs to the Turn; an error out of here is the ledger's."""
        try:
            return await self._run()
        except NotCommitted as lost:
            raise lost.error from None

    async def _run(self) -> Verdict:
        claimed = self.claimed
        try:
            frame = await self._office.frames.load(claimed)
        except Damaged as error:
            return await self._set_back(error)
        except LedgerUnavailable:
            raise
        except Unavailable as error:
            return await self._put_off(error)
        await faults.apoint("brain.run.restored")
        if claimed.settle is not None:
            return await self._settle(frame, claimed.settle)
        try:
            await faults.apoint("brain.run.before_advance")
            outcome = await self._agent.advance(frame, self._facts(), self.host)
            await faults.apoint("brain.run.after_advance")
            return await self._commit(frame, outcome)
        except CancelFirst:
            return await self._settle(frame, Settle.CANCELLED, phase="ADVANCE")
        except Fenced:
            return Verdict.FENCED
        except Exception as error:
            return await self._failed(frame, error)

    async def hand_over(self, reason: str, *, delay_ms: int = 0) -> None:
        """Give the Thread back for another host to go on with."""
        now = self._office.clock.now_ms()
        await self._office.ledger.commit(
            give_back,
            GiveBack(
                thread=self.claimed.thread,
                host=self._office.host,
                token=self.claimed.token,
                reason=reason,
                ready_at=now + delay_ms,
                now=now,
            ),
        )

    def _facts(self) -> Facts:
        claimed = self.claimed
        return Facts(
            turn=claimed.turn,
            fresh=claimed.iterations == 0 and claimed.calls == 0 and claimed.said == 0,
            input=made.turn_input(claimed),
            iterations=claimed.iterations,
            results=made.outcomes(claimed.unapplied),
            waiting=made.waiting(claimed.unapplied),
        )

    def _place(self, phase: str = "ADVANCE") -> Place:
        return made.place(self.claimed, host=self._office.host, step=self._step, phase=phase)

    async def _commit(self, frame: Frame, outcome: Outcome) -> Verdict:
        if not isinstance(outcome, (Parked, Finished, Failed)):
            return await self._stopped()
        stowed = await self._stowed(outcome)
        checkpoint = await self._sealed(outcome.checkpoint, frame)
        unit = self._unit(outcome, checkpoint, stowed)
        verdict = await self._advance(unit)
        if verdict is Verdict.CANCEL_FIRST:
            raise CancelFirst
        if verdict is not Verdict.FENCED:
            self._keep(frame, outcome.checkpoint.entries, outcome.checkpoint.state, checkpoint)
        return verdict

    async def _stowed(self, outcome: Outcome) -> dict[str, ObjectRef]:
        calls = outcome.calls if isinstance(outcome, Parked) else ()
        return await committed(stow(self._office.large, self.claimed, calls))

    async def _sealed(self, checkpoint: Checkpoint, frame: Frame) -> NewCheckpoint:
        sealed = made.sealed_checkpoint(checkpoint, frame, self._digest)
        return await committed(lay_down(self._office.large, self.claimed.thread, sealed))

    async def _advance(self, unit: Advance) -> Verdict:
        verdict = await self._committed(unit)
        ends = unit.next in (Next.FINISH, Next.FAIL, Next.SETTLED)
        self.ended = ends and verdict in (Verdict.COMMITTED, Verdict.READY)
        return verdict

    async def _committed(self, unit: Advance) -> Verdict:
        return await committed(self._office.ledger.commit(advance, unit))

    def _unit(
        self,
        outcome: Parked | Finished | Failed,
        checkpoint: NewCheckpoint,
        stowed: Mapping[str, ObjectRef],
    ) -> Advance:
        claimed, now = self.claimed, self._office.clock.now_ms()
        match outcome:
            case Parked():
                return made.parked(
                    self._place(),
                    outcome,
                    claimed=claimed,
                    agent=self._agent,
                    host=self.host,
                    checkpoint=checkpoint,
                    messages=self._office.messages,
                    relay=self._office.relay,
                    first_inquiry_ms=self._office.first_inquiry_ms,
                    now=now,
                    stowed=stowed,
                )
            case Finished():
                return made.finished(
                    self._place(),
                    outcome,
                    claimed=claimed,
                    host=self.host,
                    checkpoint=checkpoint,
                    now=now,
                )
            case Failed():
                return made.failed(
                    self._place(),
                    outcome,
                    claimed=claimed,
                    host=self.host,
                    checkpoint=checkpoint,
                    now=now,
                )

    def _keep(
        self, frame: Frame, entries: object, state: object, checkpoint: NewCheckpoint
    ) -> None:
        # The committed form is kept and not what the harness holds: a warm and a cold host must agree.
        frame.entries.extend(orjson.loads(checkpoint.entries))
        frame.state = orjson.loads(checkpoint.state)
        frame.position = checkpoint.position
        self._office.frames.keep(
            self.claimed.thread, checkpoint.digest, frame, added=len(checkpoint.entries)
        )

    async def _commit_receipt(self, receipt: NewReceipt) -> None:
        at = self._place("RECEIPT")
        unit = Advance(
            at=at,
            next=Next.CONTINUE,
            public=told_of(at, receipt),
            now=self._office.clock.now_ms(),
            receipts=[receipt],
            calls=self.claimed.calls,
            said=self.claimed.said,
        )
        verdict = await self._committed(unit)
        if verdict is Verdict.CANCEL_FIRST:
            raise CancelFirst
        if verdict is Verdict.FENCED:
            raise Fenced(
                f"another host owns the Thread {self.claimed.thread}",
                where=self.claimed.thread,
                next_step="nothing: the new owner goes on",
            )
        self._step += 1

    async def _stopped(self) -> Verdict:
        await self.hand_over("the host asked it to stop")
        return Verdict.READY

    async def _settle(self, frame: Frame, settle: Settle, *, phase: str = SETTLE) -> Verdict:
        """End a Turn without its agent's model, or wait until its tools are known."""
        claimed, at = self.claimed, self._place(phase)
        unit = Advance(
            at=at,
            next=Next.SETTLE,
            now=self._office.clock.now_ms(),
            settle=settle,
            failure=claimed.failure,
            calls=claimed.calls,
            said=claimed.said,
        )
        if claimed.open_count:
            return await self._advance(replace(unit, public=[made.settling(at, settle)]))
        results = made.outcomes(claimed.unapplied)
        try:
            cleaned = self._agent.settle(frame, results)
            checkpoint = await self._sealed(cleaned, frame)
        except Exception as error:
            return await self._set_back(error)
        end = settled_as(settle)
        unit = replace(
            unit,
            next=Next.SETTLED,
            end=end,
            checkpoint=checkpoint,
            applied=[result.execution for result in results],
            public=[made.ended_badly(at, end, claimed.failure)],
        )
        verdict = await self._advance(unit)
        if verdict is not Verdict.FENCED:
            self._keep(frame, cleaned.entries, cleaned.state, checkpoint)
        return verdict

    async def _set_back(self, error: Exception) -> Verdict:
        """What no retry of the agent can mend waits for a person, and says so to whoever asks why."""
        _log.error(
            "a Thread cannot be taken up", turn=self.claimed.turn, cause="set_back", error=error
        )
        await self.hand_over(said(error)[:1000], delay_ms=SET_BACK_DELAY_MS)
        return Verdict.COMMITTED

    async def _put_off(self, error: Exception) -> Verdict:
        """What is not the Turn's fault is tried again: ever later, since each time costs a Run."""
        delay_ms = BLAMELESS_DELAY_MS << min(self.claimed.run - 1, BLAMELESS_DOUBLINGS)
        await self.hand_over(said(error)[:1000], delay_ms=delay_ms)
        return Verdict.COMMITTED

    async def _failed(self, frame: Frame, error: Exception) -> Verdict:
        kind = self._office.classify(error)
        text = said(error)
        _log.warning(
            "an invocation failed", turn=self.claimed.turn, cause="invocation", error=error
        )
        if kind.blameless:
            return await self._put_off(error)
        now = self._office.clock.now_ms()
        stored = self.claimed.retry_policy
        policy = self._office.policy if stored is None else RecoveryPolicy(**orjson.loads(stored))
        verdict = after_failure(
            policy, count=self.claimed.retry_count, retryable=kind.retryable, now=now
        )
        if isinstance(verdict, Exhausted):
            return await self._exhausted(frame, error, text)
        retry = RetryAt(
            at=verdict.at,
            count=verdict.count,
            policy=orjson.dumps(policy).decode(),
            reason=text[:1000],
        )
        unit = Advance(
            at=self._place(),
            next=Next.RETRY,
            now=now,
            retry=retry,
            public=[self._recovery(policy, retry)],
        )
        answer = await self._committed(unit)
        if answer is Verdict.CANCEL_FIRST:
            return await self._settle(frame, Settle.CANCELLED, phase="ADVANCE")
        return Verdict.COMMITTED if answer is Verdict.READY else answer

    async def _exhausted(self, frame: Frame, error: Exception, text: str) -> Verdict:
        code = error.code if isinstance(error, NerveError) else "agent_error"
        failure = made.failure_json(code, text)
        self.claimed = replace(self.claimed, failure=failure)
        return await self._settle(frame, Settle.FAILED, phase="ADVANCE")

    def _recovery(self, policy: RecoveryPolicy, retry: RetryAt) -> NewEvent:
        at = self._place()
        return NewEvent(
            type="turn.recovery",
            thread=at.thread,
            turn=at.turn,
            run=at.run_id,
            body={
                "reason": retry.reason,
                "step_id": at.step_id,
                "failures": retry.count,
                "limit": policy.retries,
                "retry_at": retry.at,
            },
        )
