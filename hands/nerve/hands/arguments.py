"""Large values of Hands: arguments are fetched before anything is admitted, results stored before they count.

A command whose object is missing or wrong is kept in the inbox, tried again, and quarantined in the end;
whoever sent it is told what it waits for, and it goes on when the object is there.
"""

import asyncio
from typing import final

from nerve.common import inbox
from nerve.common.clock import Clock
from nerve.common.held import hold_back
from nerve.common.inbox import Try
from nerve.common.large import LOST, Large
from nerve.common.sql import Ledger
from nerve.hands.ledger.answers import present
from nerve.hands.port import Ended, ended
from nerve.hands.report import Answers
from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import Envelope
from nerve.protocol.errors import BadInput, Damaged, NerveError, Unavailable
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, failed_result
from nerve.protocol.objects import Holds, ObjectRef, belongs
from nerve.protocol.updates import Absence

AT_ONCE = 4
SEQUENCE = 0
"""Updates are numbered from 1; a command stands before them."""


@final
class Arguments:
    def __init__(
        self, ledger: Ledger, large: Large | None, answers: Answers, *, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._large = large
        self._answers = answers
        self._clock = clock
        self.room = asyncio.Semaphore(AT_ONCE)

    @staticmethod
    def stand_elsewhere(envelope: Envelope) -> bool:
        return command_of(envelope).arguments_ref is not None

    async def fetched_or_held(self, envelope: Envelope) -> Envelope | None:
        """The command with its arguments; None where it is held now, or answered. Raises BadInput."""
        own_reference(command_of(envelope))
        execution = envelope.execution
        found = await self._ledger.read(lambda tx: present(tx, execution))
        if found.row is not None or found.barred is not None:
            command = command_of(envelope)
            await self._answers.state(
                execution, cell=command.reply_to.address, namespace=command.namespace
            )
            return None
        try:
            return await self.fetched(envelope)
        except (*LOST, Unavailable) as error:
            await self._hold(envelope, str(error))
            return None

    async def fetched(self, envelope: Envelope) -> Envelope:
        """Raises BadInput for another's reference, NotFound or Damaged where the object is lost, and
        Unavailable."""
        command = command_of(envelope)
        ref = own_reference(command)
        if ref is None:
            return envelope
        return envelope.with_body(await whole(self._large, command, ref))

    async def release(self, envelope: Envelope) -> None:
        """It was taken in: nothing of it is held any more."""
        execution = envelope.execution
        if await self._ledger.read(lambda tx: inbox.kept(tx, execution)):
            unit = Try(execution=execution, sequence=SEQUENCE, tries=0)
            await self._ledger.commit(inbox.done, unit)

    async def tell(self, envelope: Envelope, *, quarantined: bool, reason: str) -> None:
        command = command_of(envelope)
        word = "quarantined" if quarantined else "held"
        await self._answers.refusal(
            command.execution,
            Absence.HELD,
            code=word,
            reason=f"it is {word} by its Hands: {reason}"[:1000],
            cell=command.reply_to.address,
            namespace=command.namespace,
        )

    async def _hold(self, envelope: Envelope, reason: str) -> None:
        await hold_back(self._ledger, envelope, reason, sequence=SEQUENCE, clock=self._clock)
        execution = envelope.execution
        [row] = await self._ledger.read(lambda tx: inbox.kept(tx, execution))
        await self.tell(envelope, quarantined=row["state"] == "QUARANTINED", reason=reason)


def command_of(envelope: Envelope) -> StartCommand:
    command = envelope.body
    assert isinstance(command, StartCommand)
    return command


def own_reference(command: StartCommand) -> ObjectRef | None:
    """Where its arguments stand, if not in itself. Raises BadInput for what belongs to another."""
    ref = command.arguments_ref
    namespace, execution = command.namespace, command.execution
    if ref is None or belongs(ref, namespace=namespace, execution=execution, holds=Holds.ARGUMENTS):
        return ref
    raise BadInput(
        f"the command {execution} refers to {ref.scope}, which is not its own",
        where="/body/arguments_ref",
        next_step="the sender must put the arguments under their execution",
    )


async def whole(
    large: Large | None, command: StartCommand, ref: ObjectRef, *, patient: bool = False
) -> StartCommand:
    """The command with the arguments that `ref` names. Raises NotFound, Damaged, Unavailable."""
    if large is None:
        raise Unavailable(
            "its arguments stand in an object store, and this Hands host has none",
            where="--objects",
            next_step="start it with the --objects of its Brain",
        )
    arguments = await large.fetch(ref, patient=patient)
    if not isinstance(arguments, dict):
        raise Damaged("the object holds no arguments", where=ref.scope)
    return command.with_arguments(arguments)


async def stowed(
    large: Large | None, command: StartCommand, result: ExecutionResult
) -> ObjectRef | None:
    """Where the result stands, if it is too large for its update."""
    if large is None:
        return None
    return await large.stow(
        result.to_json(),
        namespace=command.namespace,
        session=command.session,
        execution=command.execution,
        holds=Holds.RESULT,
    )


def never_entered(error: NerveError) -> Ended:
    """The arguments were lost after the command was admitted; the tool was not called."""
    return ended(
        ExecutionState.FAILED,
        Effect.NONE,
        failed_result(error),
        code="arguments_lost",
        reason=str(error)[:1000],
    )
