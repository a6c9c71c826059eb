"""Work asked of Hands: the one command that may start a tool."""

from typing import Annotated, Any, Self

from pydantic import Field, JsonValue, model_validator

from nerve.protocol.canonical import digest
from nerve.protocol.identity import (
    ExecutionField,
    IdField,
    NameField,
    Origin,
    ToolField,
    TurnField,
)
from nerve.protocol.objects import ObjectRef
from nerve.protocol.wire import Digest, Millis, Ordinal, Wire


class ReplyTo(Wire):
    """Where updates go: the cell is the id of the Brain ledger that asked.

    Two copies of one ledger share a cell; the seat, where it is named, tells them apart.
    """

    cell: NameField
    seat: NameField | None = None

    @property
    def address(self) -> str:
        """Both in one text, as Hands keep it."""
        return self.cell if self.seat is None else f"{self.cell}@{self.seat}"


def parse_address(address: str) -> tuple[str, str | None]:
    """(cell, seat) of an address."""
    cell, _, seat = address.partition("@")
    return cell, seat or None


class KnownLedger(Wire):
    """The Hands ledger that a Brain has heard of on a route, and its epoch."""

    ledger_id: NameField
    epoch: Ordinal


class StartCommand(Wire):
    """Run this call once. A repeat with the same execution id and request digest changes nothing.

    After `admit_before` Hands refuses it and says so; Brain renews it under the same id.
    """

    execution: ExecutionField
    namespace: NameField
    session: NameField
    thread: NameField
    turn: TurnField
    call_id: IdField
    tool: ToolField
    tool_version: NameField
    binding_digest: Digest
    arguments: Annotated[dict[str, JsonValue], Field(max_length=4096)]
    arguments_ref: ObjectRef | None = None
    """Where large arguments stand, in canonical JSON; then `arguments` is empty."""
    request_digest: Digest
    origin: Origin
    reply_to: ReplyTo
    attempt_key: IdField
    issued_at: Millis
    admit_before: Millis
    known_ledger: KnownLedger | None = None
    """A ledger that began after this was issued, and is not that one, cannot know whether it ran."""

    def with_arguments(self, arguments: dict[str, JsonValue]) -> Self:
        """The same command with the arguments that `arguments_ref` names."""
        return self.model_copy(update={"arguments": arguments, "arguments_ref": None})

    @model_validator(mode="after")
    def _once(self) -> Self:
        if self.arguments_ref is not None and self.arguments:
            raise ValueError("a command has arguments or arguments_ref, not both")
        return self


def request_digest(
    execution: str, tool: str, tool_version: str, binding_digest: str, arguments: dict[str, Any]
) -> str:
    """What makes two commands the same request; times and places do not."""
    return digest(
        {
            "arguments": arguments,
            "binding_digest": binding_digest,
            "execution": execution,
            "tool": tool,
            "tool_version": tool_version,
        }
    )
