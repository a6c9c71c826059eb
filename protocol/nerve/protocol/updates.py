"""Facts that come back from Hands; those of one execution carry a gapless sequence."""

from enum import StrEnum
from typing import Self

from pydantic import model_validator

from nerve.protocol.errors import NerveError
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, check_effect
from nerve.protocol.identity import ExecutionField, IdField, NameField
from nerve.protocol.objects import ObjectRef, StoreProof
from nerve.protocol.output import OutputPage, OutputSeal
from nerve.protocol.wire import Code, Count, Digest, Millis, Ordinal, Reason, Wire


class LedgerMark(Wire):
    """Which ledger spoke, in which epoch, and how far it had come; a position never goes back."""

    ledger_id: NameField
    epoch: Ordinal
    position: Count

    def continues(self, seen: "LedgerMark") -> bool:
        """Whether this is the same ledger as `seen`, not restored or replaced since."""
        same = (self.ledger_id, self.epoch) == (seen.ledger_id, seen.epoch)
        return same and self.position >= seen.position


class _State(Wire):
    execution: ExecutionField
    sequence: Ordinal
    state: ExecutionState
    effect: Effect
    attempt: Count
    """0 until the first start."""
    result: ExecutionResult | None = None
    result_ref: ObjectRef | None = None
    """Where a large result stands, in canonical JSON; then there is no `result`."""
    code: Code | None = None
    reason: Reason | None = None
    host: NameField
    ledger: LedgerMark
    at: Millis
    request_digest: Digest | None = None
    cancel_requested: bool = False
    seat: NameField | None = None
    """Of the copies of a Brain ledger that share a cell, the one it is meant for."""
    older_commands_arriving: bool = False
    """Older commands of the route are still coming in: do not repeat yours yet."""

    def with_result(self, result: ExecutionResult) -> Self:
        """The same update with the result that `result_ref` names."""
        return self.model_copy(update={"result": result, "result_ref": None})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        try:
            check_effect(self.state, self.effect)
        except NerveError as error:
            raise ValueError(str(error)) from None
        if self.result is not None and self.result_ref is not None:
            raise ValueError("an update has result or result_ref, not both")
        has_result = self.result is not None or self.result_ref is not None
        if has_result and not self.state.is_terminal:
            raise ValueError(f"a result comes with a terminal state, not with {self.state}")
        return self


class ExecutionUpdate(_State):
    """One step of the recorded history; the receiver applies a gapless prefix only."""

    covers_admission: bool = False
    """A terminal update that went out before any report of the admission."""


class SnapshotUpdate(_State):
    """The whole present state: it closes the prefix up to and including its sequence."""


class Absence(StrEnum):
    NEVER_SEEN = "never_seen"
    NOT_ADMITTED = "not_admitted"
    REFUSED = "refused"
    FORGOTTEN = "forgotten"
    HELD = "held"
    """The command is here and kept, and cannot be admitted yet: `reason` says what it waits for."""


class NotFoundUpdate(Wire):
    """Hands has no row: never seen, expired before admission, refused, or settled long ago.

    It settles nothing by itself, since the command may still stand in its queue.
    """

    execution: ExecutionField
    absence: Absence
    code: Code | None = None
    reason: Reason | None = None
    host: NameField
    ledger: LedgerMark
    at: Millis
    seat: NameField | None = None
    older_commands_arriving: bool = False


class OutputPageUpdate(Wire):
    """Pages from the offset that was asked for; `seal` once the output is complete."""

    execution: ExecutionField
    pages: tuple[OutputPage, ...]
    next_offset: Count
    seal: OutputSeal | None = None
    at: Millis
    seat: NameField | None = None


class HelloUpdate(Wire):
    """Whether this host can read the object of a Hello, and one of its own to be read in turn."""

    token: IdField
    host: NameField
    store: StoreProof | None = None
    problem: Reason | None = None
    """Why the object cannot be read here."""
    at: Millis
    seat: NameField | None = None
