"""One attempt that this host owns, while it runs: what its tool sees and what the engine keeps."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from nerve.hands.output import Output
from nerve.hands.port import Ended
from nerve.protocol.binding import ToolBinding
from nerve.protocol.commands import StartCommand


@final
@dataclass(slots=True, eq=False)
class Running:
    command: StartCommand
    binding: ToolBinding
    attempt: int
    token: int
    host: str
    output: Output
    observe: Callable[["Running", Ended], object]
    cancel_requested: bool = False
    task: asyncio.Task[None] | None = None
    appends: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    cancelling: Callable[[], object] | None = None

    def on_cancel(self, callback: Callable[[], object]) -> None:
        self.cancelling = callback
        if self.cancel_requested:
            callback()

    def write(self, data: bytes) -> None:
        self.output.write(data)

    def late(self, outcome: Ended) -> None:
        self.observe(self, outcome)

    def cancel(self) -> None:
        """A cancel was recorded: the tool may look, and one that can confirm it is told."""
        if not self.cancel_requested:
            self.cancel_requested = True
            if self.cancelling is not None:
                self.cancelling()
