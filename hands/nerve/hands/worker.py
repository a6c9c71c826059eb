"""A Hands host as its owner sees it: one ledger, one incarnation, one engine; start, drain, close."""

import asyncio
from pathlib import Path
from typing import Self, final

from nerve.common.broker.port import Broker
from nerve.common.clock import Clock, SystemClock
from nerve.common.lease import Host, Hosts
from nerve.common.logs import get_log
from nerve.common.objects.port import ObjectStore
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.sql import Ledger
from nerve.common.wakeups import Wakeups
from nerve.hands.assembly import Assembly, Setup
from nerve.hands.authorize import Authorize
from nerve.hands.ledger.backend import HandsBackend, HandsStorage, LocalStorage
from nerve.hands.local import LocalExecutor
from nerve.hands.metrics import HandsMetrics
from nerve.hands.operations import ExecutionStore
from nerve.hands.port import Tools
from nerve.hands.tools import FunctionTools
from nerve.protocol.catalog import Catalog
from nerve.protocol.commands import StartCommand
from nerve.protocol.execution import RESULT_BYTES_MAX

_log = get_log("nerve.hands.worker")

MISSING_SECONDS = 300.0


@final
class WorkerRuntime:
    """Runs the tools of a catalog for one route.

    With a `broker` it consumes the route's commands and controls; `local_executor()` serves a Brain in
    this process; both may be used at once. Broker and wakeups are borrowed; the ledger is opened here:
    in a state directory, or wherever a `HandsStorage` says. `objects` is the open store that it shares
    with its Brains: without one, arguments and results must fit into a message.
    `async with` drains at the end (at most `drain_seconds`) and then closes.
    """

    def __init__(
        self,
        directory: StateDirectory | Path | str | HandsStorage,
        catalog: Catalog,
        *,
        route: str | None = None,
        slots: int | None = None,
        broker: Broker | None = None,
        deployment: str | None = None,
        authorize: Authorize | None = None,
        clock: Clock | None = None,
        settings: Settings | None = None,
        wakeups: Wakeups | None = None,
        tools: Tools | None = None,
        missing_seconds: float = MISSING_SECONDS,
        objects: ObjectStore | None = None,
    ) -> None:
        self.route = route or catalog.route
        self.settings = settings or Settings()
        self.deployment = deployment or self.settings.deployment
        self.metrics = HandsMetrics(self.route)
        self._directory = directory
        self._catalog = catalog
        self._slots = slots or self.settings.hands_slots
        self._broker = broker
        self._authorize = authorize
        self._clock = clock or SystemClock()
        self._wakeups = wakeups
        self._tools = tools
        self._missing_seconds = missing_seconds
        self._objects = objects
        self._parts: Assembly | None = None
        self._draining: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            await self.drain()
        await self.close()

    async def start(self) -> None:
        """Open the ledger, become a live host, begin to work. Raises what the ledger raises."""
        backend = await self._storage().open(
            self.route, clock=self._clock, observe=self.metrics.observe_commit
        )
        parts = Assembly(self._setup(backend), backend, self._tools or self._function_tools())
        self._parts = parts
        try:
            await parts.start()
        except BaseException:
            await self.close()
            raise

    async def drain(self, seconds: float | None = None) -> bool:
        """Take nothing new, let tools end, send what is to be sent; False where time ran out.

        May be called by a tool: its own execution is not waited for.
        """
        if self._parts is None:
            return True
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._parts.drain())
        limit = self.settings.drain_seconds if seconds is None else seconds
        await asyncio.wait([self._draining], timeout=limit)
        if not self._draining.done():
            return False
        if (error := self._draining.exception()) is not None:
            _log.warning("the drain did not end well", error=error)
        return error is None

    async def close(self) -> None:
        """Let go within `close_seconds`. What still runs is cancelled nowhere: it becomes UNKNOWN here.

        May be called by a tool, whose own execution then is among those.
        """
        if self._parts is None:
            return
        if self._closing is None:
            if self._draining is not None:
                self._draining.cancel()
            self._closing = asyncio.get_running_loop().create_task(self._parts.close())
        await asyncio.shield(self._closing)

    def local_executor(self) -> LocalExecutor:
        """The endpoint for a Brain in this process; borrowed, the worker outlives it."""
        parts = self.assembly
        return LocalExecutor(
            self.route, parts.intake.accept, parts.controls.accept, parts.publisher.bind
        )

    @property
    def executions(self) -> ExecutionStore:
        """Operations on this worker's ledger."""
        return self.assembly.store

    @property
    def ledger(self) -> Ledger:
        return self.assembly.ledger

    @property
    def host(self) -> Host:
        host = self.assembly.engine.host
        assert host is not None
        return host

    @property
    def hosts(self) -> Hosts:
        return self.assembly.hosts

    @property
    def running(self) -> int:
        """How many tools run now."""
        return 0 if self._parts is None else len(self._parts.engine.running)

    @property
    def running_commands(self) -> list[StartCommand]:
        """What this worker runs now, so that whoever stops it can say what is waited for."""
        if self._parts is None:
            return []
        return [run.command for run in self._parts.engine.running.values()]

    @property
    def assembly(self) -> Assembly:
        """The parts of a started worker, for `doctor` and tests."""
        if self._parts is None:
            raise RuntimeError("the worker is not started: use `async with` or await start()")
        return self._parts

    def _setup(self, backend: HandsBackend) -> Setup:
        return Setup(
            route=self.route,
            deployment=self.deployment,
            slots=self._slots,
            missing_seconds=self._missing_seconds,
            settings=self.settings,
            clock=self._clock,
            metrics=self.metrics,
            broker=self._broker,
            wakeups=self._wakeups or backend.wakeups,
            authorize=self._authorize,
            objects=self._objects,
        )

    def _storage(self) -> HandsStorage:
        given = self._directory
        if isinstance(given, (str, Path)):
            given = StateDirectory.open(Path(given), create=True)
        return LocalStorage(given) if isinstance(given, StateDirectory) else given

    def _function_tools(self) -> Tools:
        return FunctionTools(
            self._catalog,
            route=self.route,
            clock=self._clock,
            threads=self.settings.tool_threads,
            result_bytes=self._result_bytes(),
        )

    def _result_bytes(self) -> int:
        limit = self.settings.result_bytes_max
        return limit if self._objects is not None else min(limit, RESULT_BYTES_MAX)
