"""What a forked process becomes: a Brain, Hands, both in one, a client that submits, or an operator."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from nerve.brain.ledger.backend import LocalBackend, SessionBackend
from nerve.brain.runtime import DurableRuntime
from nerve.common import logs
from nerve.common.broker.memory import MemoryBroker
from nerve.common.broker.port import Broker
from nerve.common.broker.unruly import Disorder, UnrulyBroker
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings, load
from nerve.common.wakeups import Doorbell, Wakeups
from nerve.hands.ledger.backend import PostgresStorage
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.errors import NerveError
from nerve.protocol.executor import Executor
from nerve.protocol.identity import SessionKey
from support import cluster_place
from support.cluster_place import brain_backend, hands_place
from support.cluster_world import World

MISSING_SECONDS = 0.5
READY = "ready"


def serve(role: str, state: str, place: str) -> int:
    """Be a host until SIGTERM; then drain and end with 0."""
    settings = load()
    logs.configure(level=settings.log_level)
    return asyncio.run(_serve(role, Path(state), World(Path(place)), settings))


async def _serve(role: str, state: Path, world: World, settings: Settings) -> int:
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    opened = {"brain": _brain, "hands": _hands, "both": _both}[role]
    while True:
        async with opened(state, world, settings) as (runtime, worker):
            print(READY, flush=True)
            lost = await _until(asked, runtime)
            if not lost:
                if worker is not None:
                    await worker.drain(settings.drain_seconds)
                if runtime is not None:
                    await runtime.drain(settings.drain_seconds)
                return 0


async def _until(asked: asyncio.Event, runtime: DurableRuntime | None) -> bool:
    """True where a Brain was released while it was frozen: it joins again as a new one."""
    if runtime is None or runtime.execution is None:
        await asked.wait()
        return False
    lost = asyncio.ensure_future(runtime.execution.host.lost.wait())
    stop = asyncio.ensure_future(asked.wait())
    await asyncio.wait([lost, stop], return_when=asyncio.FIRST_COMPLETED)
    lost.cancel()
    stop.cancel()
    return not asked.is_set()


Opened = AsyncGenerator[tuple[DurableRuntime | None, WorkerRuntime | None]]


@asynccontextmanager
async def _brain(state: Path, world: World, settings: Settings) -> Opened:
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(brain_backend(state))
        broker = _broker(state, backend.wakeups, settings)
        stack.push_async_callback(broker.close)
        runtime = _runtime(backend, world, settings, broker=broker)
        stack.push_async_callback(runtime.close)
        await runtime.start()
        yield runtime, None


@asynccontextmanager
async def _hands(state: Path, world: World, settings: Settings) -> Opened:
    async with AsyncExitStack() as stack:
        place = StateDirectory.open(state, create=True)
        bell = Doorbell.open(place.path)
        stack.callback(bell.close)
        broker = _broker(state, bell, settings)
        await broker.open()
        stack.push_async_callback(broker.close)
        worker = _worker(hands_place(state), world, settings, bell, broker)
        stack.push_async_callback(worker.close)
        await worker.start()
        yield None, worker


@asynccontextmanager
async def _both(state: Path, world: World, settings: Settings) -> Opened:
    """Both in one process; with CHAOS_BROKER=memory they talk through a broker all the same."""
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(LocalBackend.open(state))
        broker: Broker | None = None
        if os.environ.get("CHAOS_BROKER") == "memory":
            broker = MemoryBroker()
            await broker.open()
            stack.push_async_callback(broker.close)
        worker = _worker(backend.directory, world, settings, backend.wakeups, broker)
        stack.push_async_callback(worker.close)
        await worker.start()
        executors: dict[str, Executor] | None = None
        if broker is None:
            executors = {"hands": worker.local_executor()}
        runtime = _runtime(backend, world, settings, broker=broker, executors=executors)
        stack.push_async_callback(runtime.close)
        await runtime.start()
        yield runtime, worker


def _runtime(
    backend: SessionBackend,
    world: World,
    settings: Settings,
    *,
    broker: Broker | None = None,
    executors: dict[str, Executor] | None = None,
) -> DurableRuntime:
    warm = os.environ.get("CHAOS_WARM_FRAMES")
    return DurableRuntime(
        backend,
        agents=world.agents(),
        broker=broker,
        executors=executors,
        settings=settings,
        warm_frames=None if warm is None else int(warm),
    )


def _worker(
    place: StateDirectory | PostgresStorage,
    world: World,
    settings: Settings,
    bell: Wakeups,
    broker: Broker | None,
) -> WorkerRuntime:
    return WorkerRuntime(
        place,
        world.hands(),
        broker=broker,
        settings=settings,
        wakeups=bell if isinstance(place, StateDirectory) else None,
        authorize=world.authorize,
        missing_seconds=float(os.environ.get("CHAOS_MISSING_SECONDS", MISSING_SECONDS)),
    )


def _broker(state: Path, bell: Wakeups, settings: Settings) -> Broker:
    broker = cluster_place.broker(state, bell, settings)
    seed = os.environ.get("CHAOS_DISORDER")
    if seed is None:
        return broker
    disorder = Disorder(
        seed=int(seed) + os.getpid() % 97,
        lose=0.15,
        double=0.2,
        delay=0.2,
        delay_seconds_max=0.3,
        shuffle=0.3,
        swallow_confirm=0.15,
    )
    return UnrulyBroker(broker, disorder)


def client(state: str, acks: str, *kinds: str) -> int:
    """Submit one Turn per kind and write down each acknowledgement after it was given."""
    return asyncio.run(_client(Path(state), Path(acks), kinds))


async def _client(state: Path, acks: Path, kinds: tuple[str, ...]) -> int:
    async with brain_backend(state) as backend, DurableRuntime(backend) as runtime:
        for number, kind in enumerate(kinds):
            session = await runtime.session(SessionKey("c", f"{acks.stem}-{number}"), agent="chaos")
            thread = await session.open_thread("side", agent="chaos")
            for name, target in (("main", session.thread()), ("side", thread)):
                text = "slow" if kind == "cancelled" else kind
                turn = await target.submit(f"{acks.stem}-{number}-{name}", text)
                with acks.open("a") as file:
                    file.write(f"{turn.thread.id} {turn.id}\n")
                if kind == "cancelled":
                    await turn.cancel(f"{acks.stem}-{number}-{name}-cancel")
        # Closed before anything is asked of it, so that no Turn is in the way.
        spare = await runtime.session(SessionKey("c", f"{acks.stem}-spare"), agent="chaos")
        await spare.close()
    return 0


def operator(state: str, place: str) -> int:
    """Resolve whatever is UNKNOWN by what the effect file says."""
    from support.probe import resolve_unknown

    try:
        asyncio.run(resolve_unknown(Path(state), Path(place) / "effects.txt"))
    except NerveError as error:
        print(f"operator: {error}", flush=True)
        return 1
    return 0
