"""Receiving from a queue file: claim as much as the credit allows, wait for the doorbell, look anyway."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import final

from nerve.common.broker.port import Credit, Delivery
from nerve.common.broker.sqlite_writer import QueueWriter, Token
from nerve.common.clock import Clock, nap
from nerve.common.wakeups import Subscription, Wakeups
from nerve.protocol.errors import BrokerUnavailable

TAKEN_BYTES_MAX = 4 * 1024 * 1024

_OPEN = (
    "FROM message WHERE topic = ? AND NOT EXISTS"
    " (SELECT 1 FROM claim WHERE claim.message = message.id)"
)
_ANY = f"SELECT 1 {_OPEN} LIMIT 1"
_TAKE = f"SELECT id, envelopes, published_at, body {_OPEN} ORDER BY id"
_CLAIM = "INSERT INTO claim (message, consumer, claimed_at) VALUES (?, ?, ?)"


def channel_of(topic: str) -> str:
    """The doorbell of a topic."""
    return f"topic:{topic}"


@final
class SqliteConsumer:
    def __init__(
        self,
        writer: QueueWriter,
        topic: str,
        credit: Credit,
        wakeups: Wakeups,
        clock: Clock,
        *,
        poll_seconds: float,
        closed: Callable[["SqliteConsumer"], None],
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._credit = credit
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._on_closed = closed
        self._look = asyncio.Event()
        self._mine: dict[int, Delivery] = {}
        self._closed = False
        self._bell: Subscription = wakeups.listen(channel_of(topic), lambda _: self.poke())
        writer.renewed.append(self._start_over)

    async def receive(self) -> Sequence[Delivery]:
        while not self._closed:
            self._look.clear()
            room = self._credit()
            # Nothing is awaited between the commit of a claim and this return: a cancelled
            # receive has either claimed nothing or returned everything.
            if room > 0 and (taken := await self._take(room)):
                return taken
            await nap(self._clock, self._look, self._poll_seconds)
        raise _closed(self._topic)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._let_go(deliveries, done=True)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._let_go(deliveries, done=False)

    def poke(self) -> None:
        self._look.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._bell.close()
        self._writer.renewed.remove(self._start_over)
        self.nack(list(self._mine.values()))
        self.poke()
        self._on_closed(self)
        await self._writer.settle()

    def _let_go(self, deliveries: Sequence[Delivery], *, done: bool) -> None:
        for delivery in deliveries:
            if isinstance(delivery.token, Token):
                self._mine.pop(delivery.token.message, None)
            self._writer.let_go(delivery.token, done=done)

    def _start_over(self) -> None:
        self._mine.clear()
        self.poke()

    async def _take(self, room: int) -> list[Delivery]:
        if not await self._writer.look(_ANY, (self._topic,)):
            return []
        taken: list[Delivery] = []

        def claim(connection: sqlite3.Connection) -> None:
            taken[:] = self._pick(connection, room)

        await self._writer.transact("claim", claim)
        for delivery in taken:
            message = self._number(delivery)
            self._mine[message] = delivery
            self._writer.held[message] = self._topic
        if self._closed:
            self.nack(taken)
            return []
        return taken

    def _pick(self, connection: sqlite3.Connection, room: int) -> list[Delivery]:
        picked: list[Delivery] = []
        size = 0
        for message, envelopes, published_at, body in connection.execute(_TAKE, (self._topic,)):
            if picked and (envelopes > room or size + len(body) > TAKEN_BYTES_MAX):
                break
            token = Token(self._writer.file.generation, message)
            picked.append(
                Delivery(topic=self._topic, body=body, token=token, published_at_ms=published_at)
            )
            room -= envelopes
            size += len(body)
            if room <= 0:
                break
        now_ms, consumer = self._clock.now_ms(), self._writer.consumer
        claims = [(self._number(delivery), consumer, now_ms) for delivery in picked]
        connection.executemany(_CLAIM, claims)
        return picked

    @staticmethod
    def _number(delivery: Delivery) -> int:
        assert isinstance(delivery.token, Token)
        return delivery.token.message


def _closed(topic: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        "this consumer is closed", where=topic, next_step="Consume the topic again"
    )
