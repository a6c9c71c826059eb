"""What a Hands host consists of, in the order in which it starts, drains and closes."""

import asyncio
from dataclasses import dataclass
from typing import final

from nerve.common.broker.backlog import waiting_on
from nerve.common.broker.port import Broker
from nerve.common.clock import Clock
from nerve.common.held import Held
from nerve.common.inbox import InboxLoop
from nerve.common.large import Collector, Large
from nerve.common.lease import Hosts
from nerve.common.lifecycle import Loop, Scan
from nerve.common.logs import get_log
from nerve.common.objects.port import ObjectStore
from nerve.common.outbox import Relay
from nerve.common.settings import Settings
from nerve.common.sql import Tx
from nerve.common.sql.retention import Retention
from nerve.common.wakeups import Subscription, Wakeups
from nerve.hands.authorize import Authorize, Gate
from nerve.hands.controls import Controls
from nerve.hands.engine import Engine
from nerve.hands.intake import Intake
from nerve.hands.ledger import retention
from nerve.hands.ledger.backend import HandsBackend
from nerve.hands.ledger.conditions import REPORTED
from nerve.hands.ledger.missing import offer_key
from nerve.hands.ledger.release import release_executions
from nerve.hands.ledger.reports import Speaker
from nerve.hands.loopwatch import LoopWatch
from nerve.hands.metrics import HandsMetrics
from nerve.hands.operations import ExecutionStore, changed_channel
from nerve.hands.ownership import Ownership
from nerve.hands.port import Tools
from nerve.hands.publisher import Publisher
from nerve.hands.report import Answers, Progresses
from nerve.hands.retention import Census, Forgetting
from nerve.hands.slots import Slots
from nerve.hands.starts import Starts
from nerve.hands.tools import printing
from nerve.protocol.topics import commands, controls, group

_log = get_log("nerve.hands.worker")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a worker was given."""

    route: str
    deployment: str
    slots: int
    missing_seconds: float
    settings: Settings
    clock: Clock
    metrics: HandsMetrics
    broker: Broker | None
    wakeups: Wakeups | None
    authorize: Authorize | None
    objects: ObjectStore | None


@final
class Assembly:
    """Everything that lives between start and close of a worker."""

    def __init__(self, setup: Setup, backend: HandsBackend, tools: Tools) -> None:
        ledger = backend.ledger
        self.backend = backend
        self.ledger = ledger
        self.tools = tools
        self.settings = setup.settings
        self.metrics = setup.metrics
        self.clock = setup.clock
        self.wakeups = setup.wakeups
        self.broker = setup.broker
        self.route = setup.route
        self.deployment = setup.deployment
        self.large: Large | None = None
        if setup.objects is not None:
            self.large = Large(
                setup.objects,
                ledger,
                inline_bytes=self.settings.envelope_inline_bytes_max,
                bytes_max=self.settings.object_bytes_max,
                clock=self.clock,
            )
        self.slots = setup.slots
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
            backend.liveness,
            role=f"hands:{self.route}",
            clock=self.clock,
            settings=self.settings,
            also=self.release,
            grace_seconds=self.settings.grace_seconds,
            on_release=lambda host: self._poke(),
        )
        self._build(setup)
        self._loops: list[Loop] = []
        self._inboxes: list[InboxLoop] = []
        self._commands: InboxLoop | None = None
        self._subscriptions: list[Subscription] = []
        self._rejoining: asyncio.Task[None] | None = None
        self._starved = False
        self._printing = False
        self._watch: LoopWatch | None = None

    def _build(self, setup: Setup) -> None:
        ledger, speaker, clock = self.ledger, self.speaker, self.clock
        self.progresses = Progresses(
            ledger,
            speaker,
            obstacle=lambda tool, version, tenant: self.engine.obstacle(tool, version, tenant),
            clock=clock,
            after_seconds=self.settings.admission_report_seconds,
        )
        self.answers = Answers(
            ledger, speaker, self.progresses, self.publisher.publish, clock=clock
        )
        self.engine = Engine(
            ledger,
            self.tools,
            speaker,
            Slots(setup.slots, self.tools.pools, tenant_total=self.settings.hands_tenant_slots),
            clock=clock,
            metrics=self.metrics,
            ended=self._ended,
            large=self.large,
        )
        self.starts = Starts(
            ledger,
            self.engine,
            self.tools.bindings(),
            speaker,
            clock=clock,
            metrics=self.metrics,
            missing_seconds=setup.missing_seconds,
            scan_seconds=self.settings.scan_seconds,
            started=self.progresses.watch,
        )
        gate = Gate(self.deployment, self.route, setup.authorize)
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
            large=self.large,
            waits=lambda: self._ring(self._waiting_channel()),
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
            large=self.large,
            cancelled=lambda execution: self._ring(self._cancelled_channel()),
        )
        self.ownership = Ownership(
            ledger, self.engine, speaker, clock=clock, scan_seconds=self.settings.scan_seconds
        )
        self.store = ExecutionStore(ledger, speaker, clock=clock)

    async def start(self) -> None:
        await self._register()
        printing.install()
        self._printing = True
        self._watch = LoopWatch(self.metrics)
        self._watch.start()
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
        await self.starts.drain()
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
            await self.backend.close()

    async def _stop_intake(self) -> None:
        for inbox in self._inboxes:
            await inbox.close()
        self.engine.close()
        await self.intake.drain()
        await self.starts.drain()
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
        if self._watch is not None:
            self._watch.close()
        if self._printing:
            self._printing = False
            printing.uninstall()

    async def _register(self) -> None:
        bindings = self.tools.bindings()
        offers = {offer_key(each.name, each.version): each.digest for each in bindings}
        host = await self.hosts.register(
            {"route": self.route, "slots": self.slots, "tools": offers}
        )
        self.speaker.host = host.id
        host.on_lost.append(self._lost)
        self.engine.adopt(host)

    def _lost(self) -> None:
        """Released by another host (we were frozen): release is final, so become a new one."""
        self.engine.disown()
        loop = asyncio.get_running_loop()
        self._rejoining = loop.create_task(self._rejoin(), name="rejoin")

    async def _rejoin(self) -> None:
        old = self.hosts.host
        await self._register()
        if old is not None:
            await old.stop_beating()
            await old.drop_lock()
        self._poke()

    def _scans(self) -> list[Scan]:
        return [
            self.hosts,
            self.relay,
            self.starts,
            self.ownership,
            Forgetting(self.ledger, clock=self.clock),
            Retention(
                self.ledger,
                retention.kinds(self.settings),
                clock=self.clock,
                interval_seconds=self.settings.retention_seconds,
            ),
            Census(self.ledger, self.metrics, clock=self.clock, queued=self._queued),
            Held(
                self.ledger,
                self.intake.again,
                clock=self.clock,
                tries_max=self.settings.inbox_tries_max,
                scan_seconds=self.settings.scan_seconds,
                given_up=self.intake.given_up,
            ),
            *self._collectors(),
        ]

    def _collectors(self) -> list[Scan]:
        if self.large is None:
            return []
        grace = self.settings.object_grace_seconds
        return [
            Collector(
                self.large.store, self.ledger, REPORTED, grace_seconds=grace, clock=self.clock
            )
        ]

    async def _queued(self) -> int:
        topic = commands(self.deployment, self.route)
        return (await waiting_on(self.broker, [topic])).get(topic, 0)

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
        # Until it is told: whoever else asks must not take this away from the one that waits.
        self._starved = self._starved or credit <= 0
        return credit

    def _ended(self, execution: str) -> None:
        self.progresses.ended(execution)
        self.starts.pull()
        if self._starved and self._commands is not None:
            self._starved = False
            self._commands.poke()

    async def release(self, tx: Tx, host: str, now: int) -> None:
        """What the release of a host does here, inside its transaction."""
        await release_executions(tx, host, now, self.speaker)

    def _beat_late(self) -> float:
        host = self.engine.host
        return 0.0 if host is None else host.beat_late_seconds

    def _cancelled_channel(self) -> str:
        return f"hands/{self.speaker.ledger_id}/cancelled"

    def _waiting_channel(self) -> str:
        return f"hands/{self.speaker.ledger_id}/waiting"

    def _ring(self, channel: str) -> None:
        """Whoever runs a tool that is to be cancelled, or has room, may be another replica."""
        if self.wakeups is not None:
            self.wakeups.ring(channel)

    def _listen(self) -> None:
        if self.wakeups is None:
            return
        for channel in (self._cancelled_channel(), changed_channel(self.speaker.ledger_id)):
            self._subscriptions.append(self.wakeups.listen(channel, lambda channel: self._poke()))
        self._subscriptions.append(
            self.wakeups.listen(self._waiting_channel(), lambda channel: self._look_for_work())
        )

    def _look_for_work(self) -> None:
        """Another replica admitted more than it can start; a busy one finds it when a slot is free."""
        if self.engine.free:
            for loop in self._loops:
                if loop.name == Starts.name:
                    loop.poke()

    def _poke(self) -> None:
        """Something changed in the ledger that is not ours: look now."""
        for loop in self._loops:
            if loop.name in (Relay.name, Starts.name, Ownership.name):
                loop.poke()
