"""Assembly of hosts on a state directory: a Brain, Hands, or both in one process.

Used by the command line, the demo, the benchmark and tests. Each of the context managers starts a
host and closes it at once at the end; `drain` first lets it finish what it has.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from nerve.brain.harness import Harness
from nerve.brain.ledger.backend import LocalBackend, SessionBackend
from nerve.brain.runtime import DurableRuntime
from nerve.common.broker.port import Broker
from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.clock import Clock, SystemClock
from nerve.common.metrics import Metrics
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.wakeups import Doorbell, Wakeups
from nerve.deploy.addresses import broker_at
from nerve.deploy.databases import brain_backend, hands_storage
from nerve.deploy.hints import hinted, hints_of
from nerve.deploy.measured import MeasuredBroker
from nerve.deploy.needs import asked_routes, brain_needs, hands_needs, require
from nerve.deploy.occupancy import occupied
from nerve.deploy.stores import opened
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.catalog import Catalog


@final
@dataclass(slots=True, kw_only=True)
class Host:
    """What runs in this process on one directory."""

    directory: StateDirectory
    clock: Clock
    backend: SessionBackend | None = None
    runtime: DurableRuntime | None = None
    workers: dict[str, WorkerRuntime] = field(default_factory=dict[str, WorkerRuntime])
    broker: Broker | None = None
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False

    async def drain(self, seconds: float | None = None) -> bool:
        """Finish what is at hand, tools before the Brain that hears of them; False: not all of it."""
        self.draining = True
        rested = True
        for worker in self.workers.values():
            rested = await worker.drain(seconds) and rested
        if self.runtime is not None:
            rested = await self.runtime.drain(seconds) and rested
        return rested

    def running_tools(self) -> list[str]:
        """Tools that run here now, as "name (execution)"."""
        return [
            f"{each.tool} ({each.execution})"
            for worker in self.workers.values()
            for each in worker.running_commands
        ]


@asynccontextmanager
async def brain_host(
    agents: Iterable[Harness],
    directory: Path | str,
    *,
    settings: Settings | None = None,
    clock: Clock | None = None,
    fresh: bool = False,
) -> AsyncGenerator[Host]:
    """A Brain that speaks to Hands of other processes over the directory's broker."""
    settings, clock = settings or Settings(), clock or SystemClock()
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        place, backend, wakeups = await _opened(stack, directory, settings, clock, metrics)
        backend = await hinted(stack, backend, settings, clock)
        stack.enter_context(occupied(place, alone=False))
        broker = _broker(place.path, wakeups, settings, clock)
        stack.push_async_callback(broker.close)
        agents = list(agents)
        cell, routes = backend.ledger.identity.id, asked_routes(agents)
        await require(broker, brain_needs(settings.deployment, cell, routes))
        objects = await stack.enter_async_context(opened(settings, place, clock))
        runtime = DurableRuntime(
            backend,
            agents=agents,
            broker=MeasuredBroker(broker, metrics, "brain", clock),
            settings=settings,
            fresh=fresh,
            objects=objects,
        )
        stack.push_async_callback(runtime.close)
        await runtime.start()
        yield Host(
            directory=place,
            clock=clock,
            backend=backend,
            runtime=runtime,
            broker=broker,
            metrics=metrics,
        )


@asynccontextmanager
async def hands_host(
    catalog: Catalog,
    directory: Path | str,
    *,
    route: str | None = None,
    slots: int | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> AsyncGenerator[Host]:
    """Hands of one route that hear from Brains of other processes over the directory's broker."""
    settings, clock = settings or Settings(), clock or SystemClock()
    async with AsyncExitStack() as stack:
        place = StateDirectory.open(Path(directory), create=True)
        stack.enter_context(occupied(place, alone=False))
        wakeups = Doorbell.open(place.path)
        stack.callback(wakeups.close)
        broker = _broker(place.path, wakeups, settings, clock)
        await broker.open()
        stack.push_async_callback(broker.close)
        asked = function_routes(catalog) if route is None else [route]
        await require(broker, hands_needs(settings.deployment, asked))
        metrics = Metrics()
        objects = await stack.enter_async_context(opened(settings, place, clock))
        worker = WorkerRuntime(
            hands_storage(settings) if settings.database else place,
            catalog,
            route=route,
            slots=slots,
            broker=MeasuredBroker(broker, metrics, "hands", clock),
            clock=clock,
            settings=settings,
            wakeups=await hints_of(stack, route or catalog.route, settings, clock)
            or (None if settings.database else wakeups),
            objects=objects,
        )
        stack.push_async_callback(worker.close)
        await worker.start()
        yield Host(
            directory=place,
            clock=clock,
            workers={worker.route: worker},
            broker=broker,
            metrics=metrics,
        )


@asynccontextmanager
async def local_host(
    agents: Iterable[Harness],
    catalog: Catalog,
    directory: Path | str,
    *,
    routes: Sequence[str] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    fresh: bool = False,
    alone: bool = True,
) -> AsyncGenerator[Host]:
    """Brain and Hands in one process: the same engines and ledgers, without a broker between."""
    settings, clock = settings or Settings(), clock or SystemClock()
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        backend = await _backend(directory, settings, clock, metrics)
        stack.push_async_callback(backend.close)
        if alone:
            stack.enter_context(occupied(backend.directory, alone=True))
        objects = await stack.enter_async_context(opened(settings, backend.directory, clock))
        workers: dict[str, WorkerRuntime] = {}
        for route in function_routes(catalog) if routes is None else routes:
            worker = WorkerRuntime(
                backend.directory,
                catalog,
                route=route,
                clock=clock,
                settings=settings,
                wakeups=backend.wakeups,
                objects=objects,
            )
            stack.push_async_callback(worker.close)
            await worker.start()
            workers[route] = worker
        executors = {route: worker.local_executor() for route, worker in workers.items()}
        runtime = DurableRuntime(
            backend,
            agents=agents,
            executors=executors,
            settings=settings,
            fresh=fresh,
            objects=objects,
        )
        stack.push_async_callback(runtime.close)
        await runtime.start()
        yield Host(
            directory=backend.directory,
            clock=clock,
            backend=backend,
            runtime=runtime,
            workers=workers,
            metrics=metrics,
        )


def function_routes(catalog: Catalog) -> list[str]:
    """Routes other than "local" for which the catalog has functions."""
    found = {
        each.route for each in catalog.bindings() if catalog.has_function(each.name, each.version)
    }
    return sorted(found - {"local"})


def offered(agents: Iterable[Harness]) -> Mapping[str, str]:
    """Names and versions, for people."""
    return {each.definition.agent: each.definition.version for each in agents}


async def _opened(
    stack: AsyncExitStack,
    directory: Path | str,
    settings: Settings,
    clock: Clock,
    metrics: Metrics,
) -> tuple[StateDirectory, SessionBackend, Wakeups]:
    """The place, the Brain's ledger (there or in a database) and the bells of the directory."""
    if not settings.database:
        local = await _backend(directory, settings, clock, metrics)
        stack.push_async_callback(local.close)
        return local.directory, local, local.wakeups
    place = StateDirectory.open(Path(directory), create=True)
    backend = await brain_backend(
        settings, place, create=True, clock=clock, observe=_observer(metrics)
    )
    stack.push_async_callback(backend.close)
    bells = Doorbell.open(place.path)
    stack.callback(bells.close)
    return place, backend, bells


def _observer(metrics: Metrics) -> Callable[[int, float], None]:
    def observe(units: int, seconds: float) -> None:
        metrics.batch_units.observe(units, "brain")
        metrics.commit_seconds.observe(seconds, "brain")

    return observe


async def _backend(
    directory: Path | str, settings: Settings, clock: Clock, metrics: Metrics
) -> LocalBackend:
    backend: LocalBackend = await LocalBackend.open(
        directory,
        clock=clock,
        lock_wait_seconds=settings.lock_wait_seconds,
        observe=_observer(metrics),
    )
    return backend


def _broker(path: Path, wakeups: Wakeups, settings: Settings, clock: Clock) -> Broker:
    """The broker that the settings name, or the directory's own."""
    if settings.broker:
        return broker_at(settings.broker, settings, clock)
    return SqliteBroker(
        path,
        wakeups,
        clock=clock,
        publish_seconds=settings.publish_seconds,
        poll_seconds=settings.broker_poll_seconds,
        ack_seconds=settings.ack_seconds,
        sweep_seconds=settings.sweep_seconds,
    )
