"""What one polling client of a hub holds: a consumer of the broker below, and deliveries by token."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from nerve.common.broker.port import Broker, Consumer, Delivery, envelopes_in
from nerve.protocol.errors import BrokerUnavailable


@final
@dataclass(slots=True, eq=False)
class _Session:
    consumer: Consumer
    credit: int = 0
    count: int = 0
    held: dict[str, Delivery] = field(default_factory=dict[str, Delivery])


@final
class Sessions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions: dict[str, _Session] = {}

    async def receive(
        self, id: str, topic: str, group: str, *, credit: int, seconds: float
    ) -> list[tuple[str, Delivery]]:
        """What came within `seconds`, with tokens to settle it; may be cancelled and loses nothing."""
        session = self._session(id, topic, group)
        session.credit = credit
        try:
            async with asyncio.timeout(seconds):
                return self._kept(session, await session.consumer.receive())
        except TimeoutError:
            return []
        finally:
            session.credit = 0

    def settle(self, id: str, ack: Sequence[str], nack: Sequence[str]) -> int:
        """How many of them were held; a session that ended has given everything back."""
        session = self._sessions.get(id)
        if session is None:
            return 0
        acked = [session.held.pop(token) for token in ack if token in session.held]
        nacked = [session.held.pop(token) for token in nack if token in session.held]
        if acked:
            session.consumer.ack(acked)
        if nacked:
            session.consumer.nack(nacked)
        return len(acked) + len(nacked)

    async def end(self, id: str) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            with suppress(BrokerUnavailable):
                await session.consumer.close()

    async def close(self) -> None:
        for id in list(self._sessions):
            await self.end(id)

    def _session(self, id: str, topic: str, group: str) -> _Session:
        found = self._sessions.get(id)
        if found is None:

            def credit() -> int:
                return made.credit

            made = _Session(self._broker.consume(topic, group, credit=credit))
            found = self._sessions[id] = made
        return found

    def _kept(
        self, session: _Session, deliveries: Sequence[Delivery]
    ) -> list[tuple[str, Delivery]]:
        kept: list[tuple[str, Delivery]] = []
        for each in deliveries:
            session.count += 1
            session.credit -= envelopes_in(each.body)
            token = str(session.count)
            session.held[token] = each
            kept.append((token, each))
        return kept
