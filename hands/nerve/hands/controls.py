"""Questions and wishes: answered or recorded apart from commands, so that no backlog delays them."""

from collections.abc import Callable, Sequence
from typing import final

from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.inbox import Refusal, refuse
from nerve.common.large import Large
from nerve.common.logs import get_log
from nerve.common.sql import Ledger
from nerve.hands.authorize import Gate
from nerve.hands.engine import Engine
from nerve.hands.ledger.cancel import Cancel, Cancelled, request_cancel
from nerve.hands.ledger.reports import Speaker
from nerve.hands.ledger.settle import Settled, settle
from nerve.hands.metrics import HandsMetrics
from nerve.hands.report import Answers
from nerve.protocol.controls import (
    CancelExecution,
    Hello,
    QueryExecution,
    ReadOutput,
    ReplayUpdates,
    RouteQuery,
    SettledExecutions,
)
from nerve.protocol.envelope import Envelope, open_envelope
from nerve.protocol.errors import BadInput, NerveError, Unavailable, WrongLedger
from nerve.protocol.objects import StoreProof
from nerve.protocol.updates import HelloUpdate

_log = get_log("nerve.hands.controls")

faults.register("hands", ["hands.controls.before_handle", "hands.controls.handled"])

KEEP_MS = 24 * 3600 * 1000
"""How long a tombstone outlives its last possible command: no broker keeps a message longer."""


@final
class Controls:
    """`cancelled(execution)` is called when a cancel was recorded for an execution that has an owner."""

    def __init__(
        self,
        ledger: Ledger,
        gate: Gate,
        engine: Engine,
        answers: Answers,
        speaker: Speaker,
        *,
        clock: Clock,
        metrics: HandsMetrics,
        topic: str,
        cancelled: Callable[[str], object],
        large: Large | None = None,
    ) -> None:
        self._ledger = ledger
        self._gate = gate
        self._engine = engine
        self._answers = answers
        self._speaker = speaker
        self._clock = clock
        self._metrics = metrics
        self._topic = topic
        self._cancelled = cancelled
        self._large = large

    async def accept(self, raws: Sequence[bytes]) -> None:
        """Return after each control was handled or refused."""
        await faults.apoint("hands.controls.before_handle")
        settled: list[tuple[str, int]] = []
        for raw in raws:
            try:
                envelope = open_envelope(raw)
                await self._gate.check(envelope)
                if isinstance(envelope.body, SettledExecutions):
                    settled += [
                        (each.execution, each.known_sequence) for each in envelope.body.settled
                    ]
                else:
                    await self._handle(envelope)
            except BadInput as error:
                await self._refuse(raw, error)
            except NerveError as error:
                if isinstance(error, Unavailable | WrongLedger):
                    raise
                await self._refuse(raw, error)
        if settled:
            unit = Settled(executions=settled, keep_ms=KEEP_MS, now=self._clock.now_ms())
            await self._ledger.commit(settle, unit)
        await faults.apoint("hands.controls.handled")

    async def _handle(self, envelope: Envelope) -> None:
        body, namespace = envelope.body, envelope.namespace
        match body:
            case QueryExecution():
                cell = body.reply_to.address
                await self._answers.state(body.execution, cell=cell, namespace=namespace)
            case RouteQuery():
                for question in body.questions:
                    cell = body.reply_to.address
                    await self._answers.state(
                        question.execution, cell=cell, namespace=namespace, grouped=True
                    )
            case ReplayUpdates():
                cell = body.reply_to.address
                await self._answers.replay(
                    body.execution, body.from_sequence, cell=cell, namespace=namespace
                )
            case ReadOutput():
                await self._answers.read_output(body, namespace=namespace)
            case CancelExecution():
                await self._cancel(body)
            case Hello():
                await self._greet(body)
            case _:
                raise BadInput(f"a {envelope.kind} came as a control", where="kind")

    async def _greet(self, hello: Hello) -> None:
        """Say whether large values of that Brain can be read here, and show one of ours."""
        store: StoreProof | None = None
        problem: str | None = "this Hands host has no object store"
        if self._large is not None:
            store = await self._large.proof(self._speaker.deployment)
            problem = await self._large.unreadable(hello.store)
        if problem is not None:
            _log.error("a Brain shares no objects with this host", cause="greeting", reason=problem)
        self._answers.hello(
            HelloUpdate(
                token=hello.token,
                host=self._speaker.host,
                store=store,
                problem=problem,
                at=self._clock.now_ms(),
            ),
            cell=hello.reply_to.address,
        )

    async def _cancel(self, body: CancelExecution) -> None:
        unit = Cancel(
            id=body.execution,
            namespace=body.namespace,
            cell=body.reply_to.address,
            reason=body.reason,
            speaker=self._speaker,
            now=self._clock.now_ms(),
        )
        found = await self._ledger.commit(request_cancel, unit)
        if found is Cancelled.FOREIGN:
            raise BadInput(
                f"execution {body.execution} is not one of namespace {body.namespace}",
                where="namespace",
                next_step="name the namespace of the Session that asked for it",
            )
        if found in (Cancelled.REQUESTED, Cancelled.ALREADY_REQUESTED):
            self._engine.cancel(body.execution)
            self._cancelled(body.execution)
        if found in (Cancelled.ENDED, Cancelled.ALREADY_REQUESTED):
            cell, namespace = body.reply_to.address, body.namespace
            await self._answers.state(body.execution, cell=cell, namespace=namespace)

    async def _refuse(self, raw: bytes, error: NerveError) -> None:
        self._metrics.refused.add(self._metrics.route, error.code)
        unit = Refusal(
            topic=self._topic,
            code=error.code,
            reason=str(error)[:2000],
            head=raw,
            now=self._clock.now_ms(),
        )
        await self._ledger.commit(refuse, unit)
