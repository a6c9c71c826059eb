"""What waits in the queues of a broker, where it tells: for people and metrics, never for a decision."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Backlog(Protocol):
    """A broker that can count."""

    async def waiting(self, topics: Sequence[str]) -> Mapping[str, int]:
        """Messages of each topic that nobody holds; a topic of which nothing is known is left out.

        Raises:
            BrokerUnavailable: out of reach.
        """
        ...


async def waiting_on(broker: object, topics: Sequence[str]) -> Mapping[str, int]:
    """The same for any broker: nothing where it cannot count."""
    return await broker.waiting(topics) if isinstance(broker, Backlog) else {}
