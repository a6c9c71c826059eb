"""One Brain ledger, opened as often as there are processes, and the runtimes over it."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from nerve.brain import DurableRuntime, LocalBackend, Session, SessionBackend
from nerve.brain.agents.context import Context
from nerve.brain.agents.function import Body, FunctionAgent
from nerve.brain.harness import Harness
from nerve.brain.ledger.postgres_backend import PostgresBackend
from nerve.common.clock import Clock, SystemClock, VirtualClock, settle
from nerve.common.settings import Settings
from nerve.common.sql import Row, SqliteLedger, Statement, Tx
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from nerve.protocol.identity import SessionKey
from support.fake_hands import FakeHands
from support.servers.postgres import database, execute

KEY = SessionKey("acme", "s-1")

QUICK = Settings(
    lease_seconds=2.0,
    heartbeat_seconds=0.2,
    sweep_seconds=0.02,
    scan_seconds=0.02,
    outbox_resend_seconds=0.2,
    inquiry_silence_seconds=0.2,
    repeat_first_seconds=0.2,
    drain_seconds=1.0,
)


def catalog(route: str = "hands") -> Catalog:
    """Tools that take any text, by the names that tests use."""
    tools = Catalog(route=route)

    @tools.tool
    async def echo(text: str) -> str:
        """Says it again."""
        return text

    @tools.tool
    async def other(text: str) -> str:
        """Another tool."""
        return text

    return tools


def function(
    body: Body, name: str = "agent", *, version: str = "1", tools: Catalog | None = None
) -> FunctionAgent:
    return FunctionAgent(body, name, version=version, tools=tools)


@final
class Underway:
    """How much is on its way to a ledger and back, which takes real time also where time is virtual."""

    def __init__(self) -> None:
        self._count = 0

    def watch(self, ledger: Any) -> None:  # Any: its methods are taken over
        submit, read = ledger.submit, ledger.read

        def submitted(law: Any, unit: Any) -> "asyncio.Future[Any]":
            self._count += 1
            future: asyncio.Future[Any] = submit(law, unit)
            future.add_done_callback(self._ended)
            return future

        async def committed(law: Any, unit: Any) -> Any:
            return await submitted(law, unit)

        async def answered(query: Any) -> Any:
            self._count += 1
            try:
                return await read(query)
            finally:
                self._ended()

        ledger.submit, ledger.commit, ledger.read = submitted, committed, answered

    def _ended(self, _: object = None) -> None:
        self._count -= 1

    async def over(self) -> None:
        """Return once nothing is, and whoever was answered has gone on."""
        while self._count:
            await asyncio.sleep(0.001)
            await settle()


Pair = tuple[DurableRuntime, DurableRuntime]
"""Two processes over one ledger."""


@dataclass
class Cell:
    """`backend()` opens the ledger anew, as another process would."""

    path: Path
    clock: Clock
    stack: AsyncExitStack
    url: str | None = None
    runtimes: list[DurableRuntime] = field(default_factory=list[DurableRuntime])
    underway: Underway = field(default_factory=Underway)

    async def backend(self) -> SessionBackend:
        made: SessionBackend
        if self.url is None:
            local = LocalBackend.open(self.path, clock=self.clock)
            made = await self.stack.enter_async_context(local)
        else:
            server = await PostgresBackend.open(self.url, clock=self.clock)
            made = await self.stack.enter_async_context(server)
        if isinstance(self.clock, VirtualClock):
            self.underway.watch(made.ledger)
        return made

    async def advance_until(self, fact: Callable[[], object], *, step: float = 0.02) -> None:
        """Move virtual time until a fact holds. It stands while anything is on its way to a ledger: else a
        slow machine would show long waits that are none."""
        clock = self.clock
        assert isinstance(clock, VirtualClock)
        for _ in range(5000):
            await self.underway.over()
            if fact():
                return
            await clock.advance(step)
            await asyncio.sleep(0.002)
        raise AssertionError("it never happened")

    async def runtime(
        self,
        *agents: Harness,
        hands: FakeHands | None = None,
        settings: Settings = QUICK,
        started: bool = True,
        **options: Any,
    ) -> DurableRuntime:
        """Another process's runtime. Without agents it is an API-only host."""
        runtime = DurableRuntime(
            await self.backend(),
            agents=agents,
            executors={} if hands is None else {hands.route: hands},
            settings=settings,
            **options,
        )
        self.runtimes.append(runtime)
        self.stack.push_async_callback(runtime.close)
        return await runtime.start() if started else runtime


@asynccontextmanager
async def brain_cell(
    path: Path, clock: Clock | None = None, *, kind: str = "sqlite"
) -> AsyncGenerator[Cell, None]:
    """A ledger of one `kind`; a test is skipped where there is no server for it."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database()) if kind == "postgres" else None
        yield Cell(path, clock or SystemClock(), stack, url)


async def rows(runtime: DurableRuntime, statement: Statement, **named: Any) -> list[Row]:
    """What stands in the ledger."""

    async def query(tx: Tx) -> list[Row]:
        return list(await tx.all(statement, **named))

    return await runtime.ledger.read(query)


async def crash(runtime: DurableRuntime) -> None:
    """What is left of a runtime whose process was killed: nothing more is written or given back.

    Its lock is dropped as the kernel would do it; its row stays LIVE.
    """
    execution, runtime.execution = runtime.execution, None
    assert execution is not None
    parts: Any = execution  # Any: a killed process respects no privacy
    parts.scheduler.stop_admitting()
    running = [each.task for each in parts.scheduler._running.values()]
    for task in running:
        task.cancel()
    for loop in [*parts._loops, parts._claims]:
        await loop.close()
    for bell in parts._bells:
        bell.close()
    if parts._inbox is not None:
        await parts._inbox.close()
    await parts.relay.close()
    await parts.host.stop_beating()
    await parts.host.drop_lock()
    if isinstance(runtime.backend, LocalBackend):
        # The kernel drops a lock and leaves its file.
        (runtime.backend.directory.locks / f"{parts.host.id}.lock").touch()
    if running:
        await asyncio.wait(running)


async def opened(runtime: DurableRuntime, agent: str = "agent", name: str = "s-1") -> Session:
    return await runtime.session(replace(KEY, session=name), agent=agent)


def texts(items: Iterable[Any]) -> list[str]:
    """What was said, in order."""
    return [item.message.text for item in items]


def write(runtime: DurableRuntime | SessionBackend, text: str) -> None:
    """What no law would write."""
    ledger: Any = runtime.ledger
    if not isinstance(ledger, SqliteLedger):
        execute(ledger.source.address, _for_server(text))
        return
    connection = sqlite3.connect(ledger.path, timeout=10, isolation_level=None)
    connection.execute(text)
    connection.close()


def _for_server(text: str) -> str:
    """What SQLite writes as x'00' and printf, as PostgreSQL writes it."""
    text = re.sub(r"x'([0-9a-f]*)'", r"'\\x\1'::bytea", text)
    return re.sub(
        r"printf\('(\w+)%026d([.\w]*)', i\)", r"('\1' || lpad(i::text, 26, '0') || '\2')", text
    )


async def poison(runtime: DurableRuntime, execution: str) -> None:
    """The ledger itself refuses the result of one execution."""
    bad = f"new.execution = '{execution}' and new.state = 'RECEIVED'"
    if isinstance(runtime.ledger, SqliteLedger):
        await asyncio.to_thread(
            write,
            runtime,
            f"create trigger poison before update on intent when {bad}"
            " begin select raise(abort, 'poison'); end",
        )
        return
    await asyncio.to_thread(
        write,
        runtime,
        "create function poison() returns trigger language plpgsql as"
        " $$ begin raise exception 'poison'; end $$",
    )
    await asyncio.to_thread(
        write,
        runtime,
        f"create trigger poison before update on intent for each row when ({bad})"
        " execute function poison()",
    )


async def heal(runtime: DurableRuntime) -> None:
    on = "" if isinstance(runtime.ledger, SqliteLedger) else " on intent"
    await asyncio.to_thread(write, runtime, f"drop trigger poison{on}")


class Gate:
    """A body that stops where the test wants it, and says how often it ran."""

    def __init__(self) -> None:
        self.entered = 0
        self.open = asyncio.Event()

    async def __call__(self, ctx: Context, input: Message) -> str:
        self.entered += 1
        await self.open.wait()
        return f"done {input.text}"


async def calling(ctx: Context, input: Message) -> str:
    """An agent with one tool call."""
    return str(await ctx.call("echo", text=input.text))


async def hello(ctx: Context, input: Message) -> str:
    """An agent without tools."""
    return f"hello {input.text}"
