"""Questions and wishes that must not queue behind work; each is answered from the ledger."""

from typing import Annotated, Final

from pydantic import Field

from nerve.protocol.commands import ReplyTo
from nerve.protocol.identity import ExecutionField, IdField, NameField, RequestField
from nerve.protocol.objects import StoreProof
from nerve.protocol.output import PAGE_BYTES_MAX
from nerve.protocol.wire import Count, Ordinal, Reason, Wire

QUESTIONS_MAX: Final = 1024


class QueryExecution(Wire):
    """Answered by a SnapshotUpdate, or by a NotFoundUpdate where Hands has no row."""

    execution: ExecutionField
    reply_to: ReplyTo
    known_sequence: Count = 0


class CancelExecution(Wire):
    """Asks for an end. Before a start it leaves a tombstone, so that a later start does nothing.

    It is repeated until a tombstone or a terminal state answers; that answer is the confirmation.
    """

    execution: ExecutionField
    namespace: NameField
    reply_to: ReplyTo
    request_id: RequestField | None = None
    reason: Reason | None = None


class ReplayUpdates(Wire):
    """Sends the recorded updates again, from a sequence on."""

    execution: ExecutionField
    reply_to: ReplyTo
    from_sequence: Ordinal = 1


class ReadOutput(Wire):
    """Answered by an OutputPageUpdate; `attempt` absent means the latest."""

    execution: ExecutionField
    reply_to: ReplyTo
    attempt: Ordinal | None = None
    offset: Count = 0
    limit: Annotated[int, Field(ge=1, le=16 * PAGE_BYTES_MAX)] = PAGE_BYTES_MAX


class Question(Wire):
    """One execution of a grouped question and the last sequence that Brain holds of it."""

    execution: ExecutionField
    known_sequence: Count = 0


class RouteQuery(Wire):
    """Many questions at once; each is answered as a QueryExecution of its own would be."""

    questions: Annotated[tuple[Question, ...], Field(min_length=1, max_length=QUESTIONS_MAX)]
    reply_to: ReplyTo
    host: NameField | None = None


class SettledExecutions(Wire):
    """Results up to these sequences were applied: the rows may shrink to tombstones."""

    settled: Annotated[tuple[Question, ...], Field(min_length=1, max_length=QUESTIONS_MAX)]
    reply_to: ReplyTo


class Hello(Wire):
    """A Brain starts: can you read what I put into my object store? Answered by a HelloUpdate."""

    reply_to: ReplyTo
    token: IdField
    """Comes back in the answer, so that an old one is not taken for it."""
    store: StoreProof
