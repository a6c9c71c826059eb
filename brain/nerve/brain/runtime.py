"""`DurableRuntime`: the assembly of a Brain and the entry of everything that is asked of it.

Without agents it is an API-only host: it admits work and serves reads. With agents it claims what
their exact definitions pin, runs it, and hands it over when it stops.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from types import TracebackType
from typing import Self

from nerve.brain.agents.local import LOCAL_ROUTE
from nerve.brain.agents.models import FailureClass, classify
from nerve.brain.execution import Execution
from nerve.brain.handles import Session, Turn, admit
from nerve.brain.harness import Harness
from nerve.brain.ledger import queries
from nerve.brain.ledger.backend import SessionBackend
from nerve.brain.ledger.cancel import unknown_turn
from nerve.brain.ledger.sessions import OpenSession, open_session
from nerve.brain.schedule.failures import Classify, Failure
from nerve.brain.schedule.invocation import Office
from nerve.brain.schedule.registry import Registry
from nerve.brain.schedule.run_host import Emit
from nerve.brain.state.recovery import RecoveryPolicy
from nerve.brain.tools.messages import Messages
from nerve.brain.views import TurnItem
from nerve.brain.watch import Watch
from nerve.common.broker.port import Broker
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.objects.port import ObjectStore
from nerve.common.settings import Settings
from nerve.common.sql import Ledger, Row, Tx
from nerve.protocol.content import Content
from nerve.protocol.errors import BadInput, UnknownTurn
from nerve.protocol.executor import Executor
from nerve.protocol.identity import SessionKey, ThreadKey, check_name, check_turn_id

_log = get_log("nerve.brain.runtime")

READY = "brain:ready:"
CANCELLED = "brain:cancelled:"


def default_classify(error: BaseException) -> Failure:
    """I/O, timeouts, 429 and 5xx are tried again; shutdown and lost ownership cost nothing."""
    kind = classify(error)
    return Failure(
        retryable=kind is FailureClass.TRANSIENT,
        blameless=kind in (FailureClass.INTERRUPTED, FailureClass.INCOMPATIBLE),
    )


class DurableRuntime:
    """One Brain host over a backend, which stays the caller's, as executors and brokers do."""

    def __init__(
        self,
        backend: SessionBackend,
        *,
        agents: Iterable[Harness] = (),
        executors: Mapping[str, Executor] | None = None,
        broker: Broker | None = None,
        settings: Settings | None = None,
        classify: Classify = default_classify,
        policy: RecoveryPolicy | None = None,
        emit: Emit | None = None,
        fresh: bool = False,
        warm_frames: int | None = None,
        objects: ObjectStore | None = None,
    ) -> None:
        """Nothing is opened before `start` (or `async with`).

        Args:
            agents: definitions that this host runs; none makes it an API-only host.
            executors: by route; a `broker` makes one for every other route.
            fresh: take changed bindings under an unchanged version although Turns hold the old.
            objects: the open store that this Brain shares with its Hands; without one, arguments and
                results must fit into a message.
            warm_frames: Threads kept in memory between Runs; 0 restores every Run from the ledger.
        """
        self.backend = backend
        self.settings = settings or Settings()
        self.clock = backend.clock
        self.registry = Registry(agents)
        self.messages = Messages(
            deployment=self.settings.deployment,
            cell=backend.ledger.identity.id,
            admit_within_ms=int(self.settings.admit_within_seconds * 1000),
            seat=backend.seat,
        )
        self.first_inquiry_ms = int(self.settings.repeat_first_seconds * 1000)
        self.watch = Watch(
            backend.ledger,
            backend.wakeups,
            backend.clock,
            scan_seconds=self.settings.scan_seconds,
        )
        self._executors = dict(executors or {})
        self._broker = broker
        self._classify = classify
        self._policy = policy or RecoveryPolicy()
        self._emit: Emit = emit or (lambda turn, kind, body: None)
        self._fresh = fresh
        self._warm_frames = warm_frames
        self.objects = objects
        self._renewal: asyncio.Task[None] | None = None
        self.execution: Execution | None = None

    @property
    def ledger(self) -> Ledger:
        return self.backend.ledger

    def now(self) -> int:
        return self.clock.now_ms()

    async def start(self) -> Self:
        """Begin to execute, where there is something to execute with."""
        if not len(self.registry):
            return self
        missing = self._unreachable_routes()
        if missing:
            named = ", ".join(missing)
            raise BadInput(
                f"the agents have tools on the route {named}, and there is neither an executor for"
                " it nor a broker",
                where="executors",
                next_step=f"pass executors={{{missing[0]!r}: worker.local_executor()}} or broker=...",
            )
        await self._execute()
        return self

    def _unreachable_routes(self) -> list[str]:
        if self._broker is not None:
            return []
        routes = {
            binding.route
            for _, agent in self.registry.items()
            for binding in agent.bindings.values()
        }
        return sorted(routes - {LOCAL_ROUTE} - self._executors.keys())

    async def _execute(self) -> None:
        execution = Execution(self, self._executors, self._broker, self._office)
        try:
            await execution.start(fresh=self._fresh, warm_frames=self._warm_frames)
        except BaseException:
            await execution.close()
            raise
        self.execution = execution
        execution.host.on_lost.append(lambda: self._renew_soon(execution))
        if execution.host.lost.is_set():
            self._renew_soon(execution)

    def _renew_soon(self, lost: Execution) -> None:
        if self.execution is lost and self._renewal is None:
            self._renewal = asyncio.get_running_loop().create_task(self._renew(lost), name="renew")

    async def _renew(self, lost: Execution) -> None:
        """This process was taken for dead, and was not: it goes on as a new incarnation."""
        self.execution = None
        failures = 0
        try:
            await _quietly(lost.close())
            while self.execution is None:
                failures += 1
                await _quietly(self._execute())
                if self.execution is None:
                    await self.clock.sleep(Backoff().after(failures))
        finally:
            self._renewal = None

    def _office(self, execution: Execution) -> Office:
        return Office(
            ledger=self.ledger,
            host=execution.host.id,
            clock=self.clock,
            frames=execution.frames,
            messages=self.messages,
            relay=execution.relay,
            emit=self._emit,
            classify=self._classify,
            policy=self._policy,
            first_inquiry_ms=self.first_inquiry_ms,
            large=execution.large,
        )

    async def drain(self, seconds: float | None = None) -> bool:
        """Stop admitting work, let what runs come to rest, hand over the rest; True: all rested."""
        if self.execution is None:
            return True
        return await self.execution.drain(
            self.settings.drain_seconds if seconds is None else seconds
        )

    async def close(self) -> None:
        """Stop at once and let go of everything. Cancels no Turn and closes nothing handed in."""
        renewal = self._renewal
        if renewal is not None:
            renewal.cancel()
            await asyncio.wait([renewal])
        renewal = self._renewal
        if renewal is not None:
            renewal.cancel()
            await asyncio.wait([renewal])
        execution, self.execution = self.execution, None
        try:
            if execution is not None:
                await execution.close()
        finally:
            self.watch.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.drain()
        await self.close()

    async def session(
        self, key: SessionKey, agent: str | None = None, *, version: str | None = None
    ) -> Session:
        """The Session, made with its main Thread where `agent` is named and it does not exist.

        Raises:
            UnknownSession, UnknownAgent: there is nothing to find, or nothing to make it with.
            Conflict: it exists for another agent.
        """
        if agent is not None:
            check_name(agent, "agent")
        await self.ledger.commit(
            open_session, OpenSession(key=key, agent=agent, version=version, now=self.now())
        )
        return Session(self, key)

    async def submit(
        self,
        key: SessionKey,
        request_id: str,
        content: Content,
        *,
        agent: str,
        version: str | None = None,
    ) -> Turn:
        """Admit a Turn in the main Thread, and make the Session where there is none: one commit.

        Raises as `session` and as `Thread.submit`; then neither was made.
        """
        check_name(agent, "agent")
        opening = OpenSession(key=key, agent=agent, version=version, now=self.now())
        return await admit(Session(self, key).thread(), request_id, content, opening)

    def get_session(self, key: SessionKey) -> Session:
        """The handle of an existing Session; nothing is read."""
        return Session(self, key)

    async def get_turn(self, id: str, *, namespace: str | None = None) -> Turn:
        """The handle of a Turn known by its id alone; whoever acts for a tenant names its `namespace`.

        Raises UnknownTurn, InvalidName; another tenant's Turn is unknown.
        """
        check_turn_id(id)

        async def query(tx: Tx) -> Row:
            return await queries.turn(tx, id)

        try:
            row = await self.ledger.read(query)
        except UnknownTurn:
            if namespace is None:
                raise
            raise unknown_turn(id) from None
        thread = ThreadKey.parse(row["thread"])
        if namespace is not None and thread.namespace != namespace:
            raise unknown_turn(id)
        return Turn(self, thread, id)

    async def list_turns(
        self, *, unfinished: bool = False, limit: int = 100, namespace: str | None = None
    ) -> list[TurnItem]:
        """The newest Turns, of one tenant or (for an operator) of the ledger."""

        async def query(tx: Tx) -> list[Row]:
            rows = await queries.latest(tx, unfinished=unfinished, limit=limit, namespace=namespace)
            return list(rows)

        return [TurnItem.of(row) for row in await self.ledger.read(query)]

    def wake(self, definition: str) -> None:
        """A Thread of `definition` became READY: whoever offers it may look now."""
        self.backend.wakeups.ring(f"{READY}{definition}")
        if self.execution is not None and definition in self.registry.ids:
            self.execution.poke()

    def cancelled(self, turn: str) -> None:
        """Tell the owner of a running Turn that it was cancelled."""
        self.backend.wakeups.ring(f"{CANCELLED}{turn}")
        if self.execution is not None:
            self.execution.scheduler.interrupt(turn)

    def notify(self, turn: str, ended: bool = False) -> None:
        """Something about a Turn was committed: tell its watchers, here and in other processes."""
        self.watch.tell(turn, ended=ended)


async def _quietly(work: Awaitable[None]) -> None:
    """Renewing goes on whatever a part of it says; what it says is logged."""
    try:
        await work
    except Exception as error:
        _log.warning("renewing this host met an error", cause="renew", error=error)
