"""A broker that measures what passes: how long a message was under way, and how many travelled together."""

from collections.abc import Mapping, Sequence
from typing import final

from nerve.common.broker.backlog import waiting_on
from nerve.common.broker.port import Broker, Consumer, Credit, Delivery, Telling, envelopes_in
from nerve.common.clock import Clock
from nerve.common.metrics import Metrics


@final
class MeasuredBroker:
    """The same broker for whoever uses it."""

    def __init__(self, under: Broker, metrics: Metrics, side: str, clock: Clock) -> None:
        self._under = under
        self._metrics = metrics
        self._side = side
        self._clock = clock

    async def open(self) -> None:
        await self._under.open()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._metrics.bundle_envelopes.observe(envelopes_in(body), self._side)
        await self._under.publish(topic, bodies)

    def consume(self, topic: str, group: str, *, credit: Credit) -> Consumer:
        under = self._under.consume(topic, group, credit=credit)
        return _MeasuredConsumer(under, self._metrics, self._side, self._clock)

    def troubles(self) -> Sequence[str]:
        return self._under.troubles() if isinstance(self._under, Telling) else ()

    async def waiting(self, topics: Sequence[str]) -> Mapping[str, int]:
        return await waiting_on(self._under, topics)

    async def close(self) -> None:
        await self._under.close()


@final
class _MeasuredConsumer:
    def __init__(self, under: Consumer, metrics: Metrics, side: str, clock: Clock) -> None:
        self._under = under
        self._metrics = metrics
        self._side = side
        self._clock = clock

    async def receive(self) -> Sequence[Delivery]:
        deliveries = await self._under.receive()
        now = self._clock.now_ms()
        for each in deliveries:
            if each.published_at_ms is not None:
                seconds = max(0, now - each.published_at_ms) / 1000
                self._metrics.hop_seconds.observe(seconds, self._side)
        return deliveries

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._under.ack(deliveries)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._under.nack(deliveries)

    def poke(self) -> None:
        self._under.poke()

    async def close(self) -> None:
        await self._under.close()
