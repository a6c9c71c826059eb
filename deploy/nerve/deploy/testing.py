"""The kit for tests of agents: the real engines in one process, on a directory of their own.

    async with local_runtime(agent, tools) as runtime:
        session = await runtime.session(runtime.key("s-1"), agent="weather")
        turn = await session.submit("r-1", "Will it rain in Oslo?")
        assert (await turn.result(timeout=20)).text == "..."

`VirtualClock` makes time an input (`local_runtime(..., clock=clock)`, then `await clock.advance(60)`);
`faults.armed("hands.tool.before_call=raise@1")` breaks the process at a named place.
"""

import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

from nerve.brain.handles import Session, Turn
from nerve.brain.harness import Harness
from nerve.brain.runtime import DurableRuntime
from nerve.common import faults
from nerve.common.clock import Clock, VirtualClock
from nerve.common.settings import Settings
from nerve.deploy.host import Host, local_host
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import BadInput
from nerve.protocol.identity import SessionKey

__all__ = ["LocalRuntime", "VirtualClock", "faults", "local_runtime"]


@final
class LocalRuntime:
    """A Brain and its Hands in this process. `runtime` and `worker` are the engines themselves."""

    def __init__(self, host: Host) -> None:
        assert host.runtime is not None
        self.host = host
        self.runtime: DurableRuntime = host.runtime

    @property
    def worker(self) -> WorkerRuntime:
        """The Hands, where there is one route."""
        workers = list(self.host.workers.values())
        if len(workers) == 1:
            return workers[0]
        routes = ", ".join(self.host.workers) or "none"
        raise BadInput(
            f"the routes are {routes}", where="worker", next_step="Use host.workers[route]"
        )

    @property
    def directory(self) -> Path:
        return self.host.directory.path

    def key(self, session: str, namespace: str = "test") -> SessionKey:
        """The name of a Session."""
        return SessionKey(namespace, session)

    async def session(
        self, key: SessionKey | str, agent: str | None = None, *, version: str | None = None
    ) -> Session:
        """The Session, made for `agent` where it does not exist."""
        named = key if isinstance(key, SessionKey) else self.key(key)
        return await self.runtime.session(named, agent, version=version)

    async def ask(self, agent: str, text: str, *, timeout: float = 20.0) -> str:
        """Submit to a new Session and return the text of the answer; fail where there is none."""
        number = len(await self.runtime.list_turns(limit=1000)) + 1
        session = await self.session(f"ask-{number}", agent)
        result = await session.call(f"ask-{number}", text, timeout)
        assert result.output is not None, f"{result.turn} is {result.phase}: {result.failure}"
        return result.text

    async def turn(self, id: str) -> Turn:
        return await self.runtime.get_turn(id)


@asynccontextmanager
async def local_runtime(
    agent: Harness | Sequence[Harness],
    catalog: Catalog | None = None,
    *,
    directory: Path | str | None = None,
    clock: Clock | None = None,
    settings: Settings | None = None,
) -> AsyncGenerator[LocalRuntime]:
    """A one-process host on a temporary directory, or on one that outlives the block."""
    agents = agent if isinstance(agent, Sequence) else [agent]
    with tempfile.TemporaryDirectory(prefix="nerve-test-") as made:
        async with local_host(
            agents,
            catalog or Catalog(),
            made if directory is None else directory,
            settings=settings,
            clock=clock,
        ) as host:
            yield LocalRuntime(host)
            await host.drain()
