"""Large results of updates: fetched before anything is recorded, else the update is held.

An update whose object is missing or wrong is kept in the inbox, tried again and quarantined in the end;
`why` names it. Hands are asked on all the while, so that it goes on by itself when the object is there.
"""

import asyncio
from typing import final

from pydantic import ValidationError

from nerve.common import inbox
from nerve.common.clock import Clock
from nerve.common.held import hold_back
from nerve.common.inbox import Try
from nerve.common.large import LOST, Large
from nerve.common.logs import get_log
from nerve.common.sql import Ledger
from nerve.protocol.envelope import Envelope
from nerve.protocol.errors import BadInput, Damaged, Unavailable
from nerve.protocol.execution import ExecutionResult
from nerve.protocol.objects import Holds, belongs
from nerve.protocol.updates import ExecutionUpdate, SnapshotUpdate

_log = get_log("nerve.brain.results")

AT_ONCE = 4


@final
class Results:
    def __init__(self, ledger: Ledger, large: Large | None, *, clock: Clock) -> None:
        self._ledger = ledger
        self._large = large
        self._clock = clock
        self.room = asyncio.Semaphore(AT_ONCE)

    @staticmethod
    def stands_elsewhere(envelope: Envelope) -> bool:
        body = envelope.body
        return isinstance(body, ExecutionUpdate | SnapshotUpdate) and body.result_ref is not None

    async def fetched_or_held(self, envelope: Envelope) -> Envelope | None:
        """The update with its result; None where it is held now. Raises BadInput."""
        try:
            return await self.fetched(envelope)
        except (*LOST, Unavailable) as error:
            _log.warning("an update is held back", cause="held", error=error)
            sequence = envelope.sequence
            await hold_back(
                self._ledger, envelope, str(error), sequence=sequence, clock=self._clock
            )
            return None

    async def fetched(self, envelope: Envelope) -> Envelope:
        """Raises BadInput for another's reference, NotFound or Damaged where the object is lost, and
        Unavailable."""
        body = envelope.body
        if not isinstance(body, ExecutionUpdate | SnapshotUpdate) or body.result_ref is None:
            return envelope
        ref = body.result_ref
        namespace, execution = envelope.namespace, body.execution
        if not belongs(ref, namespace=namespace, execution=execution, holds=Holds.RESULT):
            raise BadInput(
                f"an update of {execution} refers to {ref.scope}, which is not its own",
                where="/body/result_ref",
                next_step="Hands must put a result under its execution",
            )
        if self._large is None:
            raise Unavailable(
                "the result stands in an object store, and this Brain has none",
                where="--objects",
                next_step="start it with the --objects of its Hands",
            )
        written, _ = await self._large.fetched(ref)
        try:
            return envelope.with_body(
                body.with_result(ExecutionResult.model_validate_json(written))
            )
        except ValidationError as error:
            raise Damaged(
                f"the object holds no result: {error.error_count()} fields are wrong",
                where=ref.scope,
            ) from None

    async def release(self, envelope: Envelope) -> None:
        """It was recorded: it is held no more."""
        execution = envelope.execution
        for row in await self._ledger.read(lambda tx: inbox.kept(tx, execution)):
            if row["sequence"] <= envelope.sequence:
                unit = Try(execution=execution, sequence=row["sequence"], tries=0)
                await self._ledger.commit(inbox.done, unit)
