"""The executor of one process: the same engine and ledger, without a broker between."""

from collections.abc import Awaitable, Callable, Sequence
from typing import final

from nerve.protocol.executor import ExecutorCapabilities, UpdateSink

Accept = Callable[[Sequence[bytes]], Awaitable[None]]


@final
class LocalExecutor:
    """Implements `nerve.protocol.executor.Executor`. Borrowed: closing it leaves the worker alone."""

    def __init__(
        self,
        route: str,
        commands: Accept,
        controls: Accept,
        bind: Callable[[str, UpdateSink | None], None],
    ) -> None:
        self._route = route
        self._commands = commands
        self._controls = controls
        self._bind = bind
        self._cell: str | None = None

    async def open(self, cell: str, sink: UpdateSink) -> None:
        self._cell = cell
        self._bind(cell, sink)

    async def start(self, envelopes: Sequence[bytes]) -> None:
        await self._commands(envelopes)

    async def control(self, envelopes: Sequence[bytes]) -> None:
        await self._controls(envelopes)

    def capabilities(self) -> ExecutorCapabilities:
        return ExecutorCapabilities(remote=False, routes=(self._route,))

    async def close(self) -> None:
        cell, self._cell = self._cell, None
        if cell is not None:
            self._bind(cell, None)
