"""nerve as Brain, Hands and driver processes on one directory: no server, SQLite broker."""

import asyncio
import itertools
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.peer import Acknowledged
from bench.processes import files_bytes
from nerve.brain.handles import Turn
from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.runtime import DurableRuntime
from nerve.protocol.errors import UnknownAgent
from nerve.protocol.identity import SessionKey

APP = Path(__file__).with_name("nerve_app.py")
LIMIT_S = 120.0
START_LIMIT_S = 120.0
LOOK_AGAIN_S = 0.05
AGENT = "bench"


class Peer:
    """`_open` is all that the one-process form does otherwise."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "nerve"
        self._stack = AsyncExitStack()
        self._numbers = itertools.count()

    def settings(self) -> Mapping[str, str]:
        return {
            "sync level": "journal_mode=wal, synchronous=full",
            "broker": "sqlite",
            "logs, metrics, validation": "on",
            "tool": "in the Hands process",
            "Sessions": "a new one for each turn, numbered",
        }

    def prepare(self) -> None:
        return None

    def _command(self, *words: str) -> list[str]:
        nerve = str(Path(sys.executable).with_name("nerve"))
        metrics = ("--metrics", "127.0.0.1:0")
        return [nerve, *words, "--dir", str(self._directory), *metrics]

    def procs(self) -> Mapping[str, Sequence[str]]:
        return {
            "brain": self._command("brain", str(APP)),
            "hands": self._command("hands", str(APP), "--route", "hands"),
        }

    async def connect(self) -> None:
        self._runtime = await self._open()
        async with asyncio.timeout(START_LIMIT_S):
            while not await self._offered():
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _offered(self) -> bool:
        """Whether a Brain has offered the agent by now."""
        try:
            await self._runtime.session(SessionKey(AGENT, "first"), agent=AGENT)
        except UnknownAgent:
            return False
        return True

    async def _open(self) -> DurableRuntime:
        backend = await self._stack.enter_async_context(LocalBackend.open(self._directory))
        return await self._stack.enter_async_context(DurableRuntime(backend))

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        handle = await self._submit(f"s{next(self._numbers):08d}", turn, f"ask-{turn}")
        acknowledged(f"ask-{turn}")
        return (await handle.result(timeout=LIMIT_S)).text

    async def turn_in(self, session: str, turn: str) -> str:
        handle = await self._submit(session, turn, f"ask-{turn}")
        return (await handle.result(timeout=LIMIT_S)).text

    async def park(self, turn: str) -> None:
        await self._submit(f"w-{turn}", turn, f"wait-{turn}")

    async def _submit(self, session: str, request: str, text: str) -> Turn:
        key = SessionKey(AGENT, session)
        return await self._runtime.submit(key, request, text, agent=AGENT)

    def store_bytes(self) -> int:
        return files_bytes(self._directory.rglob("*"))

    async def close(self) -> None:
        await self._stack.aclose()
