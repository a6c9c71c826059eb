"""The assembly of a Hands host: one ledger, one incarnation, one engine; started, drained and closed."""

import asyncio
from pathlib import Path
from typing import Self, final

from nerve.common.broker.port import Broker
from nerve.common.clock import Clock, SystemClock
from nerve.common.inbox import InboxLoop
from nerve.common.lease import Host, Hosts
from nerve.common.lifecycle import Loop, Scan
from nerve.common.logs import get_log
from nerve.common.outbox import Relay
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.sql import SqliteLedger, Tx, open_sqlite
from nerve.common.wakeups import Subscription, Wakeups
from nerve.hands.authorize import Authorize, Gate
from nerve.hands.controls import Controls
from nerve.hands.engine import Engine
from nerve.hands.intake import Intake
from nerve.hands.ledger import HANDS_SCHEMA
from nerve.hands.ledger.missing import offer_key
from nerve.hands.ledger.release import release_executions
from nerve.hands.ledger.reports import Speaker
from nerve.hands.local import LocalExecutor
from nerve.hands.metrics import HandsMetrics
from nerve.hands.operations import ExecutionStore
from nerve.hands.ownership import Ownership
from nerve.hands.port import Tools
from nerve.hands.publisher import Publisher
from nerve.hands.report import Answers, Progresses
from nerve.hands.retention import Census, Forgetting
from nerve.hands.slots import Slots
from nerve.hands.starts import Starts
from nerve.hands.tools import FunctionTools, printing
from nerve.protocol.catalog import Catalog
from nerve.protocol.commands import StartCommand
from nerve.protocol.execution import RESULT_BYTES_MAX
from nerve.protocol.topics import commands, controls, group

_log = get_log("nerve.hands.worker")

MISSING_SECONDS = 300.0


@final
class WorkerRuntime:
    """Runs the tools of a catalog for one route.

    With a `broker` it consumes the route's commands and controls; `local_executor()` serves a Brain in
    this process; both may be used at once. Broker and wakeups are borrowed; the ledger is opened here.
    `async with` drains at the end (at most `drain_seconds`) and then closes.
    """

    def __init__(
        self,
        directory: StateDirectory | Path | str,
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
        self._parts: _Parts | None = None
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
        ledger = await self._open()
        parts = _Parts(self, ledger, self._tools or self._function_tools())
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
        done, _ = await asyncio.wait([self._draining], timeout=limit)
        return bool(done)

    async def close(self) -> None:
        """Let go within `close_seconds`. What still runs is cancelled nowhere: it becomes UNKNOWN here.

        May be called by a tool, whose own execution then is among those.
        """
        if self._parts is None:
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._parts.close())
        await asyncio.shield(self._closing)

    def local_executor(self) -> LocalExecutor:
        """The endpoint for a Brain in this process; borrowed, the worker outlives it."""
        parts = self._started()
        return LocalExecutor(
            self.route, parts.intake.accept, parts.controls.accept, parts.publisher.bind
        )

    @property
    def executions(self) -> ExecutionStore:
        """Operations on this worker's ledger."""
        return self._started().store

    @property
    def ledger(self) -> SqliteLedger:
        return self._started().ledger

    @property
    def host(self) -> Host:
        host = self._started().engine.host
        assert host is not None
        return host

    @property
    def hosts(self) -> Hosts:
        return self._started().hosts

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

    def _started(self) -> "_Parts":
        if self._parts is None:
            raise RuntimeError("the worker is not started: use `async with` or await start()")
        return self._parts

    async def _open(self) -> SqliteLedger:
        place = self._place()
        name = f"hands-{self.route}"
        path = place.ledger(name)
        ledger = await open_sqlite(
            path,
            HANDS_SCHEMA,
            clock=self._clock,
            create=name not in place.ledgers,
            observe=self.metrics.observe_commit,
        )
        place.made(name)
        return ledger

    def _place(self) -> StateDirectory:
        if not isinstance(self._directory, StateDirectory):
            self._directory = StateDirectory.open(Path(self._directory), create=True)
        return self._directory

    def _function_tools(self) -> Tools:
        return FunctionTools(
            self._catalog,
            route=self.route,
            clock=self._clock,
            threads=self.settings.tool_threads,
            result_bytes=min(self.settings.result_bytes_max, RESULT_BYTES_MAX),
        )


@final
class _Parts:
    """Everything that lives between start and close."""

    def __init__(self, worker: WorkerRuntime, ledger: SqliteLedger, tools: Tools) -> None:
        self.ledger = ledger
        self.tools = tools
        self.settings = worker.settings
        self.metrics = worker.metrics
        self.clock = worker._clock
        self.wakeups = worker._wakeups
        self.broker = worker._broker
        self.route = worker.route
        self.deployment = worker.deployment
        self.publisher = Publisher(self.deployment, self.broker)
        identity = ledger.identity
        self.speaker = Speaker(
            deployment=self.deployment,
            route=self.route,
            ledger_id=identity.id,
            epoch=identity.epoch,
            host="starting",
        )
        self.relay = Relay(
            ledger,
            self.publisher.publish,
            host=lambda: self.speaker.host,
            clock=self.clock,
            resend_seconds=self.settings.outbox_resend_seconds,
            scan_seconds=self.settings.scan_seconds,
        )
        self.speaker.relay = self.relay
        self.hosts = Hosts(
            ledger,
            worker._place().locks,
            role=f"hands:{self.route}",
            clock=self.clock,
            settings=self.settings,
            also=self._release,
            grace_seconds=self.settings.grace_seconds,
            on_release=lambda host: self._poke(),
        )
        self._build(worker)
        self._loops: list[Loop] = []
        self._inboxes: list[InboxLoop] = []
        self._commands: InboxLoop | None = None
        self._subscriptions: list[Subscription] = []
        self._rejoining: asyncio.Task[None] | None = None
        self._starved = False
        self._printing = False

    def _build(self, worker: WorkerRuntime) -> None:
        ledger, speaker, clock = self.ledger, self.speaker, self.clock
        self.progresses = Progresses(
            ledger, speaker, clock=clock, after_seconds=self.settings.admission_report_seconds
        )
        self.answers = Answers(
            ledger, speaker, self.progresses, self.publisher.publish, clock=clock
        )
        self.engine = Engine(
            ledger,
            self.tools,
            speaker,
            Slots(worker._slots, self.tools.pools),
            clock=clock,
            metrics=self.metrics,
            ended=self._ended,
        )
        self.starts = Starts(
            ledger,
            self.engine,
            self.tools.bindings(),
            speaker,
            clock=clock,
            metrics=self.metrics,
            missing_seconds=worker._missing_seconds,
            scan_seconds=self.settings.scan_seconds,
            started=self.progresses.watch,
        )
        gate = Gate(self.deployment, self.route, worker._authorize)
        self.intake = Intake(
            ledger,
            gate,
            self.engine,
            self.starts,
            self.progresses,
            self.answers,
            speaker,
            clock=clock,
            metrics=self.metrics,
            topic=commands(self.deployment, self.route),
        )
        self.controls = Controls(
            ledger,
            gate,
            self.engine,
            self.answers,
            speaker,
            clock=clock,
            metrics=self.metrics,
            topic=controls(self.deployment, self.route),
            cancelled=lambda execution: self._ring("cancelled"),
        )
        self.ownership = Ownership(
            ledger, self.engine, speaker, clock=clock, scan_seconds=self.settings.scan_seconds
        )
        self.store = ExecutionStore(ledger, speaker, clock=clock)

    async def start(self) -> None:
        await self._register()
        printing.install()
        self._printing = True
        self.metrics.running.ask(lambda: len(self.engine.running), self.route)
        self.metrics.free.ask(lambda: self.engine.free, self.route)
        self.metrics.beat_late.ask(self._beat_late, self.route)
        for scan in self._scans():
            loop = Loop(scan, clock=self.clock)
            self._loops.append(loop)
            await loop.start()
        self._listen()
        if self.broker is not None:
            await self._consume(self.broker)

    async def drain(self) -> None:
        if self._commands is not None:
            await self._commands.close()
        self.engine.accepting = False
        await self.hosts.drain()
        await self.intake.drain()
        await self.engine.drain()
        await self.relay.drain(self.settings.drain_seconds)

    async def close(self) -> None:
        try:
            async with asyncio.timeout(self.settings.close_seconds):
                await self._stop_intake()
                await self._stop_engine()
        except TimeoutError:
            _log.warning("closing took too long; what is left is found by the next host")
        finally:
            self._uninstall()
            await self.relay.close()
            await self.answers.close()
            await self.ledger.close()

    async def _stop_intake(self) -> None:
        for inbox in self._inboxes:
            await inbox.close()
        self.engine.close()
        await self.intake.drain()
        await self.starts.close()
        self.progresses.close()

    async def _stop_engine(self) -> None:
        if self._rejoining is not None:
            self._rejoining.cancel()
        for subscription in self._subscriptions:
            subscription.close()
        for loop in self._loops:
            await loop.close()
        # The heartbeat ends last: until here nobody else may think that this host is gone.
        await self.hosts.close()
        await self.relay.drain(self.settings.close_seconds / 4)

    def _uninstall(self) -> None:
        if self._printing:
            self._printing = False
            printing.uninstall()

    async def _register(self) -> None:
        bindings = self.tools.bindings()
        offers = {offer_key(each.name, each.version): each.digest for each in bindings}
        host = await self.hosts.register({"route": self.route, "tools": offers})
        self.speaker.host = host.id
        host.on_lost.append(self._lost)
        self.engine.adopt(host)

    def _lost(self) -> None:
        """Released by another host (we were frozen): release is final, so become a new one."""
        self.engine.accepting = False
        loop = asyncio.get_running_loop()
        self._rejoining = loop.create_task(self._rejoin(), name="rejoin")

    async def _rejoin(self) -> None:
        old = self.hosts.host
        await self._register()
        if old is not None:
            await old.stop_beating()
            old.drop_lock()
        self._poke()

    def _scans(self) -> list[Scan]:
        return [
            self.hosts,
            self.relay,
            self.starts,
            self.ownership,
            Forgetting(self.ledger, clock=self.clock),
            Census(self.ledger, self.metrics, clock=self.clock),
        ]

    async def _consume(self, broker: Broker) -> None:
        for topic, accept, credit in (
            (commands(self.deployment, self.route), self.intake.accept, self._credit),
            (controls(self.deployment, self.route), self.controls.accept, lambda: 1024),
        ):
            consumer = broker.consume(topic, group(topic), credit=credit)
            inbox = InboxLoop(consumer, accept, self.ledger, clock=self.clock)
            self._inboxes.append(inbox)
            await inbox.start()
        self._commands = self._inboxes[0]

    def _credit(self) -> int:
        """Free slots, and a bounded number that may wait for one."""
        if not self.engine.accepting:
            return 0
        room = self.settings.hands_backlog - self.starts.waiting
        credit = self.engine.free + max(0, room)
        self._starved = credit <= 0
        return credit

    def _ended(self, execution: str) -> None:
        self.progresses.ended(execution)
        self.starts.pull()
        if self._starved and self._commands is not None:
            self._commands.poke()

    async def _release(self, tx: Tx, host: str, now: int) -> None:
        await release_executions(tx, host, now, self.speaker)

    def _beat_late(self) -> float:
        host = self.engine.host
        return 0.0 if host is None else host.beat_late_seconds

    def _channel(self, what: str) -> str:
        return f"hands/{self.speaker.ledger_id}/{what}"

    def _ring(self, what: str) -> None:
        if self.wakeups is not None:
            self.wakeups.ring(self._channel(what))

    def _listen(self) -> None:
        if self.wakeups is not None:
            for what in ("cancelled", "changed"):
                listen = self.wakeups.listen
                self._subscriptions.append(
                    listen(self._channel(what), lambda channel: self._poke())
                )

    def _poke(self) -> None:
        """Something changed in the ledger that is not ours: look now."""
        for loop in self._loops:
            if loop.name in (Relay.name, Starts.name, Ownership.name):
                loop.poke()
