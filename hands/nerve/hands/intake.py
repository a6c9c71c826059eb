"""Takes what arrives: open, authorize, commit, and only then is it acknowledged or run.

Every envelope of a bundle ends in one place: admitted, answered from the ledger, held until its large
arguments are there, or in the bounded `refused` table. Only a ledger that does not answer makes a whole
bundle come again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, final

from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.inbox import Refusal, refuse
from nerve.common.large import Large
from nerve.common.sql import Ledger
from nerve.hands.arguments import Arguments
from nerve.hands.authorize import Gate
from nerve.hands.engine import Engine
from nerve.hands.ledger.admit import Admission, Admit, Bar, Command, Verdict, admit, bar
from nerve.hands.ledger.reports import Speaker
from nerve.hands.metrics import HandsMetrics
from nerve.hands.report import Answers, Progresses
from nerve.hands.starts import Starts
from nerve.protocol.binding import ToolBinding
from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import Envelope, open_envelope
from nerve.protocol.errors import BadInput, NerveError, RequestConflict, Unavailable
from nerve.protocol.updates import Absence

faults.register("hands", ["hands.intake.before_admit", "hands.intake.admitted"])

LATE_MS = 5_000
_DECIDED = frozenset({Admission.STARTED, Admission.ADMITTED, Admission.DOUBTFUL})


@final
@dataclass(frozen=True, slots=True)
class _Candidate:
    envelope: Envelope
    command: StartCommand
    binding: ToolBinding | None
    reserved: bool


@final
class Intake:
    """Commands into the ledger, and those that start at once into the engine.

    `waits()` is called where something was admitted that did not start: others may have room.
    """

    def __init__(
        self,
        ledger: Ledger,
        gate: Gate,
        engine: Engine,
        starts: Starts,
        progresses: Progresses,
        answers: Answers,
        speaker: Speaker,
        *,
        clock: Clock,
        metrics: HandsMetrics,
        topic: str,
        waits: Callable[[], object],
        large: Large | None = None,
    ) -> None:
        self._ledger = ledger
        self._gate = gate
        self._waits = waits
        self._engine = engine
        self._starts = starts
        self._progresses = progresses
        self._answers = answers
        self._speaker = speaker
        self._clock = clock
        self._metrics = metrics
        self._topic = topic
        self._arguments = Arguments(ledger, large, answers, clock=clock)
        self._draining = False
        self._pending: set[asyncio.Task[None]] = set()

    async def accept(self, raws: Sequence[bytes]) -> None:
        """Return after each command stands committed, one way or another.

        Raises Unavailable while this host drains: the sender keeps what it has.
        """
        if self._draining:
            raise Unavailable(
                "this Hands host is draining and admits nothing",
                where=self._topic,
                next_step="nothing: the command is kept by its sender and comes again",
            )
        await self._to_its_end(self._accept(raws))

    async def again(self, raw: bytes) -> bool:
        """Take in a command that was held. Raises as `accept`, and NerveError where it must wait on."""
        if self._draining:
            raise Unavailable("this Hands host is draining", where=self._topic)
        envelope = await self._arguments.fetched(open_envelope(raw))
        candidate = await self._checked(envelope, set())
        if candidate is not None:
            await self._to_its_end(self._admit([candidate]))
        return True

    async def given_up(self, raw: bytes, reason: str) -> None:
        """Tell whoever waits for a command that it waits for a person now."""
        await self._arguments.tell(open_envelope(raw), quarantined=True, reason=reason)

    async def drain(self) -> None:
        """Admit nothing more; wait for admissions that are under way."""
        self._draining = True
        while self._pending:
            await asyncio.wait(self._pending)

    async def _to_its_end(self, work: Coroutine[Any, Any, None]) -> None:
        # What is committed as STARTED must also be launched, whatever becomes of the one who asked.
        task = asyncio.get_running_loop().create_task(work, name="intake")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        await asyncio.shield(task)

    async def _accept(self, raws: Sequence[bytes]) -> None:
        small: list[Envelope] = []
        large: list[Envelope] = []
        for raw in raws:
            envelope = await self._opened(raw)
            if envelope is not None:
                elsewhere = self._arguments.stand_elsewhere(envelope)
                (large if elsewhere else small).append(envelope)
        await self._admit(await self._candidates(small))
        # Each by itself and few at once: what a bundle refers to need not fit into memory together.
        work = [self._accept_large(each) for each in large]
        for failed in await asyncio.gather(*work, return_exceptions=True):
            if failed is not None:
                raise failed

    async def _accept_large(self, envelope: Envelope) -> None:
        async with self._arguments.room:
            try:
                whole = await self._arguments.fetched_or_held(envelope)
            except BadInput as error:
                await self._refuse(envelope.raw, error)
                return
            if whole is None:
                return
            candidate = await self._checked(whole, set())
            if candidate is not None:
                await self._admit([candidate])
            await self._arguments.release(envelope)

    async def _admit(self, candidates: Sequence[_Candidate]) -> None:
        if not candidates:
            return
        host = self._engine.host
        host_id = self._speaker.host if host is None else host.id
        try:
            await faults.apoint("hands.intake.before_admit")
            verdicts = await self._ledger.commit(admit, self._unit(candidates, host_id))
            await faults.apoint("hands.intake.admitted")
        except BaseException:
            for each in candidates:
                self._give_back(each)
            raise
        self._follow(candidates, verdicts, host_id)
        for each, verdict in zip(candidates, verdicts, strict=True):
            if verdict.admission not in _DECIDED:
                await self._answer_or_refuse(each, verdict)

    async def _opened(self, raw: bytes) -> Envelope | None:
        try:
            envelope = open_envelope(raw)
            if not isinstance(envelope.body, StartCommand):
                raise BadInput(f"a {envelope.kind} came as a command", where="kind")
            return envelope
        except NerveError as error:
            await self._refuse(raw, error)
            return None

    async def _candidates(self, envelopes: Sequence[Envelope]) -> list[_Candidate]:
        seen: set[str] = set()
        checked = [await self._checked(envelope, seen) for envelope in envelopes]
        return [each for each in checked if each is not None]

    async def _checked(self, envelope: Envelope, seen: set[str]) -> _Candidate | None:
        """Authorized, and with a slot where there is one; None where it was refused."""
        command = envelope.body
        assert isinstance(command, StartCommand)
        try:
            await self._gate.check(envelope)
        except Unavailable:
            raise
        except NerveError as error:
            await self._refuse(envelope.raw, error)
            await self._bar(command, error, envelope.namespace)
            return None
        first = command.execution not in seen
        seen.add(command.execution)
        return self._candidate(envelope, command, may_start=first)

    def _candidate(
        self, envelope: Envelope, command: StartCommand, *, may_start: bool
    ) -> _Candidate:
        binding = self._engine.match(command)
        waits = self._starts.is_expected(command.binding_digest, command.namespace)
        reserved = (
            may_start
            and binding is not None
            and not waits
            and self._engine.take(binding, command.namespace)
        )
        return _Candidate(envelope, command, binding, reserved)

    def _give_back(self, each: _Candidate) -> None:
        if each.reserved and each.binding is not None:
            self._engine.give_back(each.binding, each.command.namespace)

    def _unit(self, candidates: Sequence[_Candidate], host: str) -> Admit:
        return Admit(
            host=host,
            began_at=max(self._ledger.identity.created_at, self._ledger.identity.epoch_at),
            speaker=self._speaker,
            commands=[
                Command(
                    id=each.command.execution,
                    namespace=each.command.namespace,
                    cell=each.command.reply_to.address,
                    tool=each.command.tool,
                    tool_version=each.command.tool_version,
                    binding_digest=each.command.binding_digest,
                    request_digest=each.command.request_digest,
                    envelope=each.envelope.raw,
                    issued_at=each.command.issued_at,
                    admit_before=each.command.admit_before,
                    knows_us=self._knows_us(each.command),
                    repeatable=each.binding is not None and each.binding.powers.idempotent_start,
                    start=each.reserved,
                )
                for each in candidates
            ],
            now=self._clock.now_ms(),
        )

    def _knows_us(self, command: StartCommand) -> bool | None:
        known = command.known_ledger
        if known is None:
            return None
        return (known.ledger_id, known.epoch) == (self._speaker.ledger_id, self._speaker.epoch)

    def _follow(
        self, candidates: Sequence[_Candidate], verdicts: Sequence[Verdict], host: str
    ) -> None:
        """Launch what was started, remember what waits."""
        fresh: list[str] = []
        left_waiting = False
        for each, verdict in zip(candidates, verdicts, strict=True):
            self._metrics.admissions.add(self._metrics.route, verdict.admission)
            if verdict.admission is Admission.STARTED:
                assert each.binding is not None
                self._engine.launch(each.command, each.binding, token=1, attempt=1, host=host)
            else:
                self._give_back(each)
            if verdict.admission is Admission.ADMITTED:
                self._starts.expect(each.command.binding_digest, each.command.namespace)
                self._starts.waiting += 1
                left_waiting = True
            if verdict.admission in (Admission.STARTED, Admission.ADMITTED):
                fresh.append(each.command.execution)
                self._note_age(each.command)
        self._progresses.watch(fresh)
        self._starts.pull()
        if left_waiting:
            self._waits()

    def _note_age(self, command: StartCommand) -> None:
        """Old commands that come in for the first time: Brain should not repeat its own yet."""
        now = self._clock.now_ms()
        if now - command.issued_at > LATE_MS:
            self._speaker.late_until = now + LATE_MS

    async def _answer_or_refuse(self, each: _Candidate, verdict: Verdict) -> None:
        """What cannot be answered is refused: it must not bring back its whole bundle."""
        try:
            await self._answer(each, verdict)
        except Unavailable:
            raise
        except NerveError as error:
            await self._refuse(each.envelope.raw, error)

    async def _answer(self, each: _Candidate, verdict: Verdict) -> None:
        command = each.command
        cell, namespace = command.reply_to.address, command.namespace
        match verdict.admission:
            case Admission.EXPIRED:
                error: NerveError = BadInput(
                    "the command came after its time to be admitted",
                    where="admit_before",
                    next_step="it is renewed by the Brain that still wants it",
                )
                await self._refuse(each.envelope.raw, error, code="expired")
                absence, code, reason = Absence.NOT_ADMITTED, "expired", error.message
            case Admission.CONFLICT:
                error = RequestConflict(
                    f"execution {command.execution} was admitted with another request digest",
                    where="request_digest",
                    next_step="the sender must use another execution id for another request",
                )
                await self._refuse(each.envelope.raw, error)
                absence, code, reason = Absence.REFUSED, error.code, error.message
            case Admission.BARRED:
                absence = Absence.REFUSED
                code, reason = verdict.code or "refused", verdict.reason or ""
            case _:
                await self._answers.state(command.execution, cell=cell, namespace=namespace)
                return
        await self._answers.refusal(
            command.execution, absence, code=code, reason=reason, cell=cell, namespace=namespace
        )

    async def _bar(self, command: StartCommand, error: NerveError, namespace: str) -> None:
        """Say no, and keep it a no for this very command whatever the policy says later."""
        unit = Bar(
            execution=command.execution,
            until=command.admit_before,
            code=error.code,
            reason=error.message[:1000],
        )
        if await self._ledger.commit(bar, unit):
            await self._answers.refusal(
                command.execution,
                Absence.REFUSED,
                code=error.code,
                reason=error.message[:1000],
                cell=command.reply_to.address,
                namespace=namespace,
            )

    async def _refuse(self, raw: bytes, error: NerveError, *, code: str | None = None) -> None:
        self._metrics.refused.add(self._metrics.route, code or error.code)
        unit = Refusal(
            topic=self._topic,
            code=code or error.code,
            reason=str(error)[:2000],
            head=raw,
            now=self._clock.now_ms(),
        )
        await self._ledger.commit(refuse, unit)
