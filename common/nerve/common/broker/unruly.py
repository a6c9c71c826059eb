"""A broker that misbehaves on purpose: it loses, doubles, reorders and delays, and swallows confirms.

For tests, ours and users': the same seed misbehaves in the same way for the same publishes, on any clock.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from nerve.common.broker.port import Broker, Consumer, Credit
from nerve.common.clock import Clock, SystemClock
from nerve.common.lifecycle import Background
from nerve.protocol.errors import BrokerUnavailable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Disorder:
    """How often each thing happens to an envelope (or, for confirms, to a publish), from 0 to 1."""

    seed: int
    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    delay_seconds_max: float = 1.0
    shuffle: float = 0.0
    swallow_confirm: float = 0.0


@final
class UnrulyBroker:
    """Any broker, made worse. Bundles are taken apart, since disorder is a matter of envelopes."""

    def __init__(self, inner: Broker, disorder: Disorder, *, clock: Clock | None = None) -> None:
        self._inner = inner
        self._disorder = disorder
        self._clock = clock or SystemClock()
        self._chance = random.Random(disorder.seed)
        self._background = Background(clock=self._clock)
        self.lost = 0
        self.doubled = 0
        self.delayed = 0

    async def open(self) -> None:
        await self._inner.open()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        envelopes = [envelope for body in bodies for envelope in body.split(b"\n")]
        if self._happens(self._disorder.shuffle):
            self._chance.shuffle(envelopes)
        swallowed = self._happens(self._disorder.swallow_confirm)
        now = self._sort_out(topic, envelopes)
        if now:
            await self._inner.publish(topic, now)
        if swallowed:
            raise BrokerUnavailable(
                "the confirm was swallowed on purpose", where=topic, next_step="Publish again"
            )

    def consume(self, topic: str, group: str, *, credit: Credit) -> Consumer:
        return self._inner.consume(topic, group, credit=credit)

    async def close(self) -> None:
        await self._background.close()
        await self._inner.close()

    def _sort_out(self, topic: str, envelopes: Sequence[bytes]) -> list[bytes]:
        """Decide about each envelope; what is delayed goes its own way."""
        now: list[bytes] = []
        for envelope in envelopes:
            if self._happens(self._disorder.lose):
                self.lost += 1
                continue
            copies = 1
            if self._happens(self._disorder.double):
                self.doubled += 1
                copies = 2
            for _ in range(copies):
                if self._happens(self._disorder.delay):
                    self.delayed += 1
                    seconds = self._chance.uniform(0, self._disorder.delay_seconds_max)
                    self._background.once("delayed", self._later(topic, envelope, seconds))
                else:
                    now.append(envelope)
        return now

    async def _later(self, topic: str, envelope: bytes, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await self._inner.publish(topic, [envelope])

    def _happens(self, likelihood: float) -> bool:
        return likelihood > 0 and self._chance.random() < likelihood
