"""The port that every tool endpoint fulfils, across a broker or inside one process.

Brain calls it and Hands implements it, so that neither has to import the other.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

UpdateSink = Callable[[Sequence[bytes]], Awaitable[None]]
"""Takes raw update envelopes and returns after their receiver has committed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorCapabilities:
    """What a caller may rely on; a binding may offer less."""

    recover: bool = True
    """A repeated command, or a question after a loss, finds what became of the call."""
    query: bool = True
    cancel: bool = True
    output: bool = True
    replay: bool = True
    remote: bool = False
    routes: tuple[str, ...] = ()


@runtime_checkable
class Executor(Protocol):
    """Every call is idempotent by execution id; nothing here waits for a tool to end."""

    async def open(self, cell: str, sink: UpdateSink) -> None:
        """Begin; updates for the Brain ledger `cell` go to `sink`, repeated until it returns."""
        ...

    async def start(self, envelopes: Sequence[bytes]) -> None:
        """Return only after durable admission or a broker's confirm."""
        ...

    async def control(self, envelopes: Sequence[bytes]) -> None:
        """Query, cancel, replay, read output, settled; answers come through the sink."""
        ...

    def capabilities(self) -> ExecutorCapabilities: ...

    async def close(self) -> None:
        """Stop taking work; cancels nothing outside."""
        ...
