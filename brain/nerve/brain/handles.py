"""Session, Thread and Turn by identity only: any process that has the backend can make them again."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nerve.brain.ledger import queries
from nerve.brain.ledger.admission import Submit, submit
from nerve.brain.ledger.cancel import Cancel, Cancelled, cancel
from nerve.brain.ledger.sessions import Close, OpenSession, OpenThread, close, open_thread
from nerve.brain.views import HistoryItem, RunView, StepView, ToolView, TurnItem, local_views
from nerve.brain.watch import EventPage, TurnResult
from nerve.brain.why import TurnStatus, blocked_status, status
from nerve.common.sql import Row, Tx
from nerve.protocol.canonical import canonical_bytes, digest
from nerve.protocol.content import Content, Message, Role, as_content
from nerve.protocol.errors import BadInput, TooLarge
from nerve.protocol.events import PublicEvent
from nerve.protocol.identity import (
    MAIN_THREAD,
    SessionKey,
    ThreadKey,
    check_request_id,
    new_turn_id,
)

if TYPE_CHECKING:
    from nerve.brain.runtime import DurableRuntime

CONTENT_BYTES_MAX = 512 * 1024


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of one tenant."""

    runtime: "DurableRuntime"
    key: SessionKey

    def thread(self, name: str = MAIN_THREAD) -> "Thread":
        """The handle of an existing Thread; nothing is read."""
        return Thread(self.runtime, self.key.thread(name))

    async def open_thread(
        self, name: str, *, agent: str | None = None, version: str | None = None
    ) -> "Thread":
        """Make a Thread, or find it. Raises UnknownSession, UnknownAgent, Conflict, WrongState."""
        key = self.key.thread(name)
        await self.runtime.ledger.commit(
            open_thread,
            OpenThread(
                key=self.key, name=name, agent=agent, version=version, now=self.runtime.now()
            ),
        )
        return Thread(self.runtime, key)

    async def submit(self, request_id: str, content: Content) -> "Turn":
        """Admit a Turn in the main Thread; see `Thread.submit`."""
        return await self.thread().submit(request_id, content)

    async def call(
        self, request_id: str, content: Content, timeout: float | None = None
    ) -> TurnResult:
        """Submit and wait. A timeout cancels nothing, and its error names the Turn."""
        turn = await self.submit(request_id, content)
        return await turn.result(timeout)

    async def close(self) -> None:
        """Raises WrongState while a Turn is unfinished; it cancels nothing."""
        await self.runtime.ledger.commit(
            close, Close(key=self.key, thread=None, now=self.runtime.now())
        )

    async def events(
        self,
        after: str | None = None,
        *,
        limit: int = 100,
        thread: str | None = None,
        turn: str | None = None,
        run: str | None = None,
    ) -> EventPage:
        """One page of committed events after a cursor; `limit` bounds what is scanned."""
        return await self.runtime.watch.page(
            self.key, after, limit=limit, thread=thread, turn=turn, run=run
        )


@dataclass(frozen=True, slots=True)
class Thread:
    """A line of Turns with one history."""

    runtime: "DurableRuntime"
    key: ThreadKey

    async def submit(self, request_id: str, content: Content) -> "Turn":
        """Admit a Turn; after this returns it is durable.

        Raises:
            BadInput: the id or the content cannot be stored.
            RequestConflict: the id was used with other content or for another target.
            UnknownSession, UnknownThread, WrongState: there is no open Thread.
            DiskFull, LedgerUnavailable: nothing was admitted, or nobody knows; repeat the same id.
        """
        return await admit(self, request_id, content)

    async def close(self) -> None:
        """Raises WrongState while a Turn is unfinished; it cancels nothing."""
        await self.runtime.ledger.commit(
            close,
            Close(key=self.key.session_key, thread=self.key.thread, now=self.runtime.now()),
        )

    async def history(self, after: int = 0, limit: int = 100) -> Sequence[HistoryItem]:
        """Public messages in order; they survive the pruning of events."""

        async def query(tx: Tx) -> Sequence[Row]:
            return await queries.history(tx, self.key.id, after=after, limit=limit)

        return [HistoryItem.of(row) for row in await self.runtime.ledger.read(query)]

    async def list_turns(self, after: int = 0, limit: int = 100) -> Sequence[TurnItem]:
        """Turns in admission order."""

        async def query(tx: Tx) -> Sequence[Row]:
            return await queries.turns(tx, self.key.id, after=after, limit=limit)

        return [TurnItem.of(row) for row in await self.runtime.ledger.read(query)]


@dataclass(frozen=True, slots=True)
class Turn:
    """One task."""

    runtime: "DurableRuntime"
    thread: ThreadKey
    id: str

    async def status(self) -> TurnStatus:
        """Where it stands and why it does not advance. Raises UnknownTurn."""
        now = self.runtime.now()

        async def query(tx: Tx) -> TurnStatus:
            return await status(tx, self.id, thread=self.thread.id, now=now)

        found = await self.runtime.ledger.read(query)
        blocked = self.runtime.ledger.blocked_by()
        return found if blocked is None else blocked_status(found, blocked)

    async def result(self, timeout: float | None = None) -> TurnResult:
        """Wait for the end. Raises Timeout with the Turn's identity; nothing is cancelled by that."""
        return await self.runtime.watch.result(self.thread, self.id, timeout)

    def events(self, after: str | None = None) -> AsyncIterator[PublicEvent]:
        """Committed events of this Turn, from the first or after a cursor, until it has ended."""
        return self.runtime.watch.follow(self.thread, self.id, after)

    async def cancel(self, request_id: str) -> Cancelled:
        """Ask for its end: at once where it is queued; an active one settles its tools first."""
        check_request_id(request_id)
        now = self.runtime.now()
        messages, execution = self.runtime.messages, self.runtime.execution
        namespace = self.thread.namespace
        verdict = await self.runtime.ledger.commit(
            cancel,
            Cancel(
                session=self.thread.session_key.id,
                turn=self.id,
                request_id=request_id,
                digest=digest(b"cancel"),
                make=lambda execution, route, at: messages.cancel(execution, route, namespace, at),
                repeat_ms=self.runtime.first_inquiry_ms,
                host=None if execution is None else execution.host.id,
                relay=None if execution is None else execution.relay,
                now=now,
            ),
        )
        if verdict.ready is not None:
            self.runtime.wake(verdict.ready)
        self.runtime.cancelled(self.id)
        self.runtime.notify(self.id, verdict.ended)
        return verdict

    async def list_runs(self, after: int = 0, limit: int = 100) -> Sequence[RunView]:
        async def query(tx: Tx) -> Sequence[Row]:
            return await queries.runs(tx, self.id, self.thread.id, after=after, limit=limit)

        return [RunView.of(row) for row in await self.runtime.ledger.read(query)]

    async def list_steps(
        self, run: int = 0, after: int = 0, limit: int = 100
    ) -> Sequence[StepView]:
        async def query(tx: Tx) -> Sequence[Row]:
            return await queries.steps(
                tx, self.id, self.thread.id, run=run, after=after, limit=limit
            )

        return [StepView.of(row) for row in await self.runtime.ledger.read(query)]

    async def tools(self) -> Sequence[ToolView]:
        """Every call of the Turn: requested, completed, received, applied; local ones have no execution."""

        async def query(tx: Tx) -> tuple[Sequence[Row], Sequence[Row]]:
            remote = await queries.intents(tx, self.id, self.thread.id)
            return remote, await queries.local_calls(tx, self.id, self.thread.id)

        remote, local = await self.runtime.ledger.read(query)
        return [*map(ToolView.of, remote), *local_views(local)]


async def admit(
    thread: Thread, request_id: str, content: Content, opening: OpenSession | None = None
) -> Turn:
    """`Thread.submit`; an `opening` makes the Thread's Session in the same commit."""
    runtime = thread.runtime
    check_request_id(request_id)
    message, content_digest = _said_by_user(content)
    now = runtime.now()
    turn = new_turn_id(now)
    runtime.watch.expect(turn)
    admitted = await runtime.ledger.commit(
        submit,
        Submit(
            thread=thread.key,
            request_id=request_id,
            digest=content_digest,
            content=message,
            turn=turn,
            now=now,
            opening=opening,
        ),
    )
    if admitted.ready is not None:
        runtime.wake(admitted.ready)
    if not admitted.known:
        runtime.notify(admitted.turn)
    return Turn(runtime, thread.key, admitted.turn)


def _said_by_user(content: Content) -> tuple[Message, str]:
    """The message that enters the Thread, and its digest. Raises BadInput."""
    message = as_content(content)
    if message.role is not Role.USER:
        raise BadInput(
            f"a message of the role {message.role} cannot be submitted",
            where="content/role",
            next_step="submit what the user says: the role user, or no role at all",
        )
    encoded = canonical_bytes(message.to_json())
    if len(encoded) > CONTENT_BYTES_MAX:
        raise TooLarge(
            f"the content has {len(encoded)} bytes; the limit is {CONTENT_BYTES_MAX}",
            where="content",
            next_step="send less, or a URL to it",
        )
    return message, digest(encoded)
