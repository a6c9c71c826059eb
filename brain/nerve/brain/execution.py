"""The executing half of a Brain: one incarnation, its scheduler, its messages and its scans."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nerve.brain.agents.local import LOCAL_ROUTE
from nerve.brain.ledger import queries, retention
from nerve.brain.ledger.claim import release_threads
from nerve.brain.ledger.definitions import Changed, Offer, offer
from nerve.brain.ledger.inquiries import Patience
from nerve.brain.ledger.seats import sit
from nerve.brain.schedule.frames import WARM_FRAMES_MAX, Frames
from nerve.brain.schedule.greeting import Greeting
from nerve.brain.schedule.intake import Intake
from nerve.brain.schedule.invocation import Office
from nerve.brain.schedule.registry import AGENT, frozen
from nerve.brain.schedule.scans import Clocks, Inquiries, Strays
from nerve.brain.schedule.scheduler import Scheduler
from nerve.brain.tools.remote import RemoteExecutor
from nerve.brain.tools.routes import Routes
from nerve.common.broker.port import Broker
from nerve.common.held import Held
from nerve.common.inbox import InboxLoop
from nerve.common.large import Collector, Large
from nerve.common.lease import Host, Hosts
from nerve.common.lifecycle import Loop, Scan
from nerve.common.logs import get_log
from nerve.common.outbox import Relay
from nerve.common.sql.retention import Retention
from nerve.common.wakeups import Subscription
from nerve.protocol import topics
from nerve.protocol.envelope import open_envelope
from nerve.protocol.errors import BindingMismatch
from nerve.protocol.executor import Executor
from nerve.protocol.identity import turn_of
from nerve.protocol.updates import HelloUpdate, OutputPageUpdate

if TYPE_CHECKING:
    from nerve.brain.runtime import DurableRuntime

_log = get_log("nerve.brain.execution")

INBOX_CREDIT = 1024


class Execution:
    """What a runtime with agents has, from its registration to its release."""

    host: Host
    scheduler: Scheduler
    intake: Intake

    def __init__(
        self,
        runtime: "DurableRuntime",
        executors: Mapping[str, Executor],
        broker: Broker | None,
        office: "Callable[[Execution], Office]",
    ) -> None:
        self._runtime = runtime
        self._broker = broker
        self._make_office = office
        settings = runtime.settings
        self.hosts = Hosts(
            runtime.ledger,
            runtime.backend.liveness,
            role="brain",
            clock=runtime.clock,
            settings=settings,
            also=release_threads,
            on_release=lambda host: self.poke(),
        )
        self.routes = Routes(executors, None if broker is None else self._remote)
        self.relay = Relay(
            runtime.ledger,
            self.routes.publish,
            host=lambda: self.host.id,
            clock=runtime.clock,
            resend_seconds=settings.outbox_resend_seconds,
            scan_seconds=settings.scan_seconds,
            group_max=settings.bundle_envelopes_max,
            publish_seconds=settings.publish_seconds,
        )
        self.large: Large | None = None
        if runtime.objects is not None:
            self.large = Large(
                runtime.objects,
                runtime.ledger,
                inline_bytes=settings.envelope_inline_bytes_max,
                bytes_max=settings.arguments_bytes_max,
                clock=runtime.clock,
            )
        self._greeting: Greeting | None = None
        self.pages: list[Callable[[OutputPageUpdate], None]] = []
        self._loops: list[Loop] = []
        self._claims: Loop | None = None
        self._inbox: InboxLoop | None = None
        self._bells: list[Subscription] = []

    async def start(self, *, fresh: bool, warm_frames: int | None) -> None:
        """Register, offer what this host has, and begin to claim."""
        runtime, settings = self._runtime, self._runtime.settings
        await self._offer(fresh=fresh)
        await self._sit()
        for route, mark in (await runtime.ledger.read(queries.hands_ledgers)).items():
            runtime.messages.heard(route, mark)
        await self.hosts.run_once()
        self.host = await self.hosts.register({"definitions": sorted(runtime.registry.ids)})
        keep = WARM_FRAMES_MAX if warm_frames is None else warm_frames
        self.frames = Frames(runtime.ledger, keep=keep, objects=runtime.objects)
        self.scheduler = Scheduler(
            self._make_office(self),
            runtime.registry,
            slots=settings.brain_slots,
            scan_seconds=settings.scan_seconds,
            notify=runtime.notify,
            poke=self.poke,
        )
        patience = Patience(
            silence_ms=int(settings.inquiry_silence_seconds * 1000),
            first_ms=int(settings.repeat_first_seconds * 1000),
            most_ms=int(settings.repeat_most_seconds * 1000),
        )
        self.intake = Intake(
            runtime.ledger,
            self.scheduler,
            host=self.host.id,
            messages=runtime.messages,
            patience=patience,
            relay=self.relay,
            clock=runtime.clock,
            notify=runtime.notify,
            wake=runtime.wake,
            seat=runtime.backend.seat,
            pages=self._page,
            large=self.large,
            hello=self._hello,
        )
        await self._open_executors()
        await self._greet()
        await self._start_loops(patience)

    async def _sit(self) -> None:
        """A ledger that stands elsewhere than it did may have another one in its cell."""
        runtime = self._runtime
        seat = runtime.backend.seat
        before = await runtime.ledger.commit(sit, seat)
        if before is not None:
            _log.warning(
                "this ledger was moved or copied: where the old one still runs, both share a cell",
                cell=runtime.ledger.identity.id,
                before=before,
                now=seat,
            )

    async def _offer(self, *, fresh: bool) -> None:
        runtime = self._runtime
        for _, agent in runtime.registry.items():
            changed = await runtime.ledger.commit(
                offer,
                Offer(
                    definition=agent.definition,
                    bindings=frozen(agent),
                    now=runtime.now(),
                    fresh=fresh,
                ),
            )
            if changed is not None:
                raise mismatch(changed)

    async def _open_executors(self) -> None:
        cell = self._runtime.ledger.identity.id
        for executor in self.routes.executors.values():
            await executor.open(cell, self.intake.accept)
        if self._broker is None:
            return
        await self._broker.open()
        topic = topics.updates(self._runtime.settings.deployment, cell)
        consumer = self._broker.consume(topic, topics.group(topic), credit=lambda: INBOX_CREDIT)
        self._inbox = InboxLoop(
            consumer, self.intake.accept, self._runtime.ledger, clock=self._runtime.clock
        )
        await self._inbox.start()

    async def _greet(self) -> None:
        """Where an object store was named, Hands that are up must share it."""
        runtime = self._runtime
        if self.large is None or self._broker is None or not runtime.settings.objects:
            return
        bindings = [
            each for _, agent in runtime.registry.items() for each in agent.bindings.values()
        ]
        routes = {each.route for each in bindings if each.route and each.route != LOCAL_ROUTE}
        self._greeting = Greeting(self._broker, self.large, runtime.messages, clock=runtime.clock)
        await self._greeting.meet(sorted(routes - self.routes.executors.keys()))

    def _hello(self, route: str, update: HelloUpdate) -> None:
        if self._greeting is not None:
            self._greeting.heard(route, update)

    async def _start_loops(self, patience: Patience) -> None:
        runtime, settings = self._runtime, self._runtime.settings
        scans: list[Scan] = [
            self.hosts,
            self.relay,
            Inquiries(
                runtime.ledger,
                host=self.host.id,
                messages=runtime.messages,
                patience=patience,
                relay=self.relay,
                clock=runtime.clock,
                scan_seconds=settings.scan_seconds,
            ),
            Strays(
                runtime.ledger,
                self.scheduler,
                host=self.host.id,
                clock=runtime.clock,
                scan_seconds=settings.scan_seconds,
            ),
        ]
        scans.append(
            Clocks(
                runtime.ledger,
                definitions=sorted(runtime.registry.ids),
                patience=patience,
                clock=runtime.clock,
                scan_seconds=settings.scan_seconds,
            )
        )
        scans.append(
            Retention(
                runtime.ledger,
                retention.kinds(settings),
                clock=runtime.clock,
                interval_seconds=settings.retention_seconds,
            )
        )
        scans += self._of_objects()
        self._loops = [Loop(scan, clock=runtime.clock) for scan in scans]
        self._claims = Loop(self.scheduler, clock=runtime.clock)
        wakeups = runtime.backend.wakeups
        for id in runtime.registry.ids:
            self._bells.append(wakeups.listen(f"brain:ready:{id}", lambda channel: self.poke()))
        self._bells.append(wakeups.listen("brain:cancelled:*", self._interrupt))
        for loop in [*self._loops, self._claims]:
            await loop.start()

    def _of_objects(self) -> list[Scan]:
        ledger, clock = self._runtime.ledger, self._runtime.clock
        settings = self._runtime.settings
        scans: list[Scan] = [
            Held(
                ledger,
                self.intake.again,
                clock=clock,
                tries_max=settings.inbox_tries_max,
                scan_seconds=settings.scan_seconds,
                given_up=self._told,
            )
        ]
        if self.large is not None:
            grace = settings.object_grace_seconds
            scans.append(
                Collector(
                    self.large.store, ledger, retention.WANTED, grace_seconds=grace, clock=clock
                )
            )
        return scans

    async def _told(self, raw: bytes, reason: str) -> None:
        """`why` reads it where it stands: whoever watches its Turn may look again."""
        self._runtime.notify(turn_of(open_envelope(raw).execution))

    def poke(self) -> None:
        """Look for READY Threads now."""
        if self._claims is not None:
            self._claims.poke()

    async def drain(self, seconds: float) -> bool:
        """Take nothing new, let Runs rest, publish what was committed. The lease goes on."""
        await self.hosts.drain()
        self.scheduler.stop_admitting()
        rested = await self.scheduler.drain(seconds)
        await self.relay.drain(min(seconds, self._runtime.settings.close_seconds))
        return rested

    async def close(self) -> None:
        """The release is the last thing that is committed, and the heartbeat the last that stops."""
        for bell in self._bells:
            bell.close()
        if self._claims is not None:
            await self._claims.close()
        if self.hosts.host is None:
            return
        if hasattr(self, "scheduler"):
            await self.scheduler.close()
        if self._inbox is not None:
            await self._inbox.close()
        for executor in self.routes.executors.values():
            if isinstance(executor, RemoteExecutor):
                await executor.close()
        for loop in reversed(self._loops):
            await loop.close()
        await self.relay.close()
        await self.hosts.close()

    def _remote(self, route: str) -> Executor:
        assert self._broker is not None
        return RemoteExecutor(
            self._broker, deployment=self._runtime.settings.deployment, route=route
        )

    def _interrupt(self, channel: str) -> None:
        self.scheduler.interrupt(channel.rpartition(":")[2])

    def _page(self, page: OutputPageUpdate) -> None:
        for listener in self.pages:
            listener(page)


def mismatch(changed: Changed) -> BindingMismatch:
    """Names what changed, who holds the old form, and the two ways on."""
    names = sorted(
        name
        for name in changed.old.keys() | changed.new.keys()
        if changed.old.get(name) != changed.new.get(name)
    )
    agent = changed.id.rsplit("/", 2)[0]
    tools = [name for name in names if name != AGENT]
    what = [agent] if AGENT in names else []
    what += [f"the tools {', '.join(tools)} of {agent}"] if tools else []
    return BindingMismatch(
        f"{' and '.join(what)} changed under an unchanged version, and {len(changed.turns)}"
        f" unfinished Turn(s) hold the old form ({', '.join(changed.turns[:3])})",
        where=changed.id,
        next_step='give the agent version="2", or start with --fresh to let them go on with the new'
        " form",
        details={
            "old": {name: changed.old.get(name) for name in names},
            "new": {name: changed.new.get(name) for name in names},
            "turns": list(changed.turns),
        },
    )
