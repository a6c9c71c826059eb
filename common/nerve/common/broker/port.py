"""What a broker promises: bodies of a topic, at least once, to one member of the topic's group.

A broker carries copies. What must not be lost stands in the sender's outbox until `publish` returned and
in the receiver's inbox before `ack`; queues may be wiped at any moment and everything still ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from nerve.protocol.errors import TooLarge

Credit = Callable[[], int]
"""How many envelopes a consumer may take now. Called often; must be cheap and must not raise."""

BODY_BYTES_MAX = 1024 * 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One bundle of envelopes that one consumer holds until it acknowledges it."""

    topic: str
    body: bytes
    token: object
    """Means something to the consumer that received it, and to nobody else."""
    published_at_ms: int | None = None
    """Wall time of the publisher, for the measurement of hops; None where the broker does not tell."""


class Consumer(Protocol):
    """One member of a topic's group.

    - Of several consumers of a topic each body goes to one. One consumer sees the bodies of one
      publisher in the order in which they were published, except after a `nack` or a death.
    - It takes nothing while `credit()` is not positive; a bundle that is larger than the credit is taken
      alone, since bundles are never cut.
    - What it took and never acknowledged comes back: to others when its process died or it was closed,
      never while it lives.
    """

    async def receive(self) -> Sequence[Delivery]:
        """Wait until something came. May be cancelled at any time without losing anything.

        Raises:
            BrokerUnavailable: closed, or out of reach; call again after a backoff.
        """
        ...

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Forget these bodies for good, soon. A lost or repeated acknowledgement does no harm."""
        ...

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        """Let somebody see these bodies again, soon."""
        ...

    def poke(self) -> None:
        """The credit changed: look again."""
        ...

    async def close(self) -> None:
        """Write pending acknowledgements, give back the rest. A pending `receive` raises."""
        ...


class Broker(Protocol):
    """A connection of one process to a broker."""

    async def open(self) -> None: ...

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Hand over bodies, each a bundle, all or an error; returns after the broker's confirm.

        An error says nothing about whether they were handed over: publish again, receivers deduplicate.

        Raises:
            BrokerUnavailable: no confirm within the deadline.
            DiskFull: the broker has no room.
            TooLarge: a body that no broker would carry.
        """
        ...

    def consume(self, topic: str, group: str, *, credit: Credit) -> Consumer:
        """Join the topic's group. A topic has one group; its name matters to brokers with servers."""
        ...

    async def close(self) -> None:
        """Finish what is being confirmed, close the consumers, let go."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A broker may also say how it is; a host is not ready while it says anything."""

    def troubles(self) -> Sequence[str]:
        """What keeps its consumers from taking, each in a sentence without secrets. Cheap; never raises.

        A consumer that takes nothing because its credit is used up is in no trouble.
        """
        ...


def envelopes_in(body: bytes) -> int:
    """How many envelopes a bundle holds: canonical JSON has no raw newline, so they separate."""
    return body.count(b"\n") + 1


def check_bodies(topic: str, bodies: Sequence[bytes]) -> None:
    """Refuse what no broker would carry, before anything is queued."""
    for body in bodies:
        if len(body) > BODY_BYTES_MAX:
            raise TooLarge(
                f"a message of {len(body):,} bytes is over the limit of {BODY_BYTES_MAX:,}",
                where=topic,
                next_step="Send the large part through the object store",
            )
        if not body:
            raise ValueError(f"an empty message for {topic}: a bundle holds at least one envelope")
