"""The interface of a measured system: each module of `bench.peers` has such a class `Peer`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

Acknowledged = Callable[[str], None]


class Peer(Protocol):
    """One system doing the benchmark turn; the measuring process is its driver.

    Made with the directory that holds everything it stores.
    """

    def settings(self) -> Mapping[str, str]:
        """Versions, sync level and settings, printed beside the figures."""
        ...

    def prepare(self) -> None:
        """Makes files or schemas before any process starts."""
        ...

    def procs(self) -> Mapping[str, Sequence[str]]:
        """Command lines of the processes beside the driver, by role."""
        ...

    async def connect(self) -> None: ...

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        """Does one turn; calls `acknowledged("ask-" + turn)` once the request was accepted."""
        ...

    def store_bytes(self) -> int: ...

    async def close(self) -> None: ...


class Threaded(Peer, Protocol):
    """A peer whose long Threads and waiting Turns can be measured too."""

    async def turn_in(self, session: str, turn: str) -> str:
        """One more turn in the Thread of `session`; returns its answer."""
        ...

    async def park(self, turn: str) -> None:
        """Returns once a Turn was accepted that will wait for a tool nobody hosts."""
        ...
