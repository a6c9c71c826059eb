"""What a Brain sends: sealed commands and controls as outbox rows, and where each of them goes.

A row's id derives from what it asks, so that a repeat of something still waiting in the outbox adds
nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nerve.common.outbox import OutboxRow
from nerve.protocol.binding import ToolBinding
from nerve.protocol.commands import KnownLedger, ReplyTo, StartCommand, request_digest
from nerve.protocol.controls import (
    CancelExecution,
    Question,
    ReplayUpdates,
    RouteQuery,
    SettledExecutions,
)
from nerve.protocol.envelope import Body, Envelope, open_envelope, seal
from nerve.protocol.errors import TooLarge
from nerve.protocol.identity import Origin, ThreadKey
from nerve.protocol.objects import ObjectRef
from nerve.protocol.updates import LedgerMark

COMMANDS = "commands"
CONTROLS = "controls"
EVERYBODY = "all"
"""Stands for the namespace where one message is about many tenants."""


def destination(lane: str, route: str) -> str:
    return f"{lane}:{route}"


def parse_destination(text: str) -> tuple[str, str]:
    """(lane, route)."""
    lane, _, route = text.partition(":")
    return lane, route


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Seals in the name of one Brain ledger (`cell`) of one deployment.

    `known` holds the Hands ledger heard of last on each route. A command names it, so that a
    ledger which came in its place refuses what the lost one may have run.
    """

    deployment: str
    cell: str
    admit_within_ms: int
    seat: str | None = None
    known: dict[str, KnownLedger] = field(default_factory=dict[str, KnownLedger])

    @property
    def reply_to(self) -> ReplyTo:
        return ReplyTo(cell=self.cell, seat=self.seat)

    def heard(self, route: str, mark: LedgerMark) -> None:
        """An update came from this ledger."""
        known = self.known.get(route)
        if known is None or (known.ledger_id, known.epoch) != (mark.ledger_id, mark.epoch):
            self.known[route] = KnownLedger(ledger_id=mark.ledger_id, epoch=mark.epoch)

    def start(
        self,
        binding: ToolBinding,
        *,
        thread: ThreadKey,
        turn: str,
        execution: str,
        call_id: str,
        arguments: Mapping[str, Any],
        origin: Origin,
        now: int,
        arguments_ref: ObjectRef | None = None,
    ) -> OutboxRow:
        """`arguments_ref`: where they stand, if they are too large for the message."""
        assert binding.route is not None
        body = StartCommand(
            execution=execution,
            namespace=thread.namespace,
            session=thread.session,
            thread=thread.thread,
            turn=turn,
            call_id=call_id,
            tool=binding.name,
            tool_version=binding.version,
            binding_digest=binding.digest,
            arguments={} if arguments_ref is not None else dict(arguments),
            arguments_ref=arguments_ref,
            request_digest=request_digest(
                execution, binding.name, binding.version, binding.digest, dict(arguments)
            ),
            origin=origin,
            reply_to=self.reply_to,
            attempt_key=execution,
            issued_at=now,
            admit_before=now + self.admit_within_ms,
            known_ledger=self.known.get(binding.route),
        )
        try:
            return self._row(
                f"{execution}/start", COMMANDS, binding.route, body, thread.namespace, now
            )
        except TooLarge as error:
            raise TooLarge(
                f"the arguments of the tool {binding.name!r} are too large: {error.message}",
                where=call_id,
                next_step="Pass less, for instance a name or URL under which the tool finds the rest",
            ) from None

    def repeat(self, command: bytes, execution: str, route: str) -> OutboxRow:
        """The exact command again; where the ledger stands elsewhere by now, with its new seat, since it
        would leave the answer to the one that asked from there."""
        if self.seat is None or self.seat.encode() in command:
            return OutboxRow(
                id=f"{execution}/start", destination=destination(COMMANDS, route), envelope=command
            )
        envelope = open_envelope(command)
        return self._anew(envelope, now=envelope.issued_at)

    def for_another(
        self, command: bytes, mark: LedgerMark, seen: KnownLedger | None, *, now: int
    ) -> OutboxRow | None:
        """The command for a ledger that came after the one it was meant for; None where this is that one.

        A first command names no ledger: then it was meant for the one that was heard of since.
        """
        envelope = open_envelope(command)
        body = envelope.body
        assert isinstance(body, StartCommand)
        known = body.known_ledger or seen
        if known is None or (known.ledger_id, known.epoch) == (mark.ledger_id, mark.epoch):
            return None
        if body.known_ledger is not None:
            return self.repeat(command, body.execution, envelope.route)
        return self._anew(envelope, now=now, known_ledger=known)

    def renew(self, command: bytes, *, now: int) -> OutboxRow:
        """The same request with a new time until which it may be admitted.

        When it was issued stays: a ledger that began since cannot know whether it ran.
        """
        return self._anew(open_envelope(command), now=now, admit_before=now + self.admit_within_ms)

    def _anew(self, envelope: Envelope, *, now: int, **changes: object) -> OutboxRow:
        """A command with `changes`, and with the place where its ledger stands by now."""
        body = envelope.body
        assert isinstance(body, StartCommand)
        body = body.model_copy(update={"reply_to": self.reply_to, **changes})
        return self._row(
            f"{body.execution}/start", COMMANDS, envelope.route, body, envelope.namespace, now
        )

    def cancel(self, execution: str, route: str, namespace: str, now: int) -> OutboxRow:
        body = CancelExecution(execution=execution, namespace=namespace, reply_to=self.reply_to)
        return self._row(f"{execution}/cancel", CONTROLS, route, body, namespace, now)

    def replay(
        self, execution: str, route: str, namespace: str, *, from_sequence: int, now: int
    ) -> OutboxRow:
        body = ReplayUpdates(
            execution=execution, reply_to=self.reply_to, from_sequence=from_sequence
        )
        return self._row(f"{execution}/replay", CONTROLS, route, body, namespace, now)

    def ask(
        self, questions: Sequence[tuple[str, int]], route: str, host: str | None, now: int
    ) -> OutboxRow:
        """One question about many executions, (id, last sequence) each."""
        body = RouteQuery(
            questions=tuple(
                Question(execution=execution, known_sequence=sequence)
                for execution, sequence in questions
            ),
            reply_to=self.reply_to,
            host=host,
        )
        return self._row(f"{questions[0][0]}/ask", CONTROLS, route, body, EVERYBODY, now)

    def settled(self, settled: Sequence[tuple[str, int]], route: str, now: int) -> OutboxRow:
        """Results that were applied, (id, sequence) each."""
        body = SettledExecutions(
            settled=tuple(
                Question(execution=execution, known_sequence=sequence)
                for execution, sequence in settled
            ),
            reply_to=self.reply_to,
        )
        return self._row(f"{settled[0][0]}/settled", CONTROLS, route, body, EVERYBODY, now)

    def _row(
        self, id: str, lane: str, route: str, body: Body, namespace: str, now: int
    ) -> OutboxRow:
        envelope = seal(
            body=body,
            deployment=self.deployment,
            namespace=namespace,
            route=route,
            issued_at=now,
        )
        return OutboxRow(id=id, destination=destination(lane, route), envelope=envelope.raw)
