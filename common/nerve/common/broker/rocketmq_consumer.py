"""One consumer of a RocketMQ topic: a lane for each of its brokers, and one buffer that they fill."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import final

from nerve.common import faults
from nerve.common.broker.port import Credit, Delivery, envelopes_in
from nerve.common.broker.rocketmq_lane import Held, Lane
from nerve.common.broker.rocketmq_link import Link, Place, Routes, pause, unavailable
from nerve.common.broker.rocketmq_presence import RECEIVE_MAX
from nerve.common.logs import get_log
from nerve.protocol.errors import BrokerUnavailable

_log = get_log("nerve.common.rocketmq")


@final
class RocketConsumer:
    """Implements `Consumer`.

    A message that is neither acknowledged nor given back is seen by others when its invisible time is
    over, also while this consumer lives: the server knows no ownership without a time limit.
    """

    def __init__(
        self,
        link: Link,
        routes: Routes,
        *,
        name: str,
        topic: str,
        group: str,
        credit: Credit,
    ) -> None:
        self._link = link
        self._routes = routes
        self._name = name
        self._topic = topic
        self._group = group
        self._credit = credit
        self._buffer: deque[Held] = deque()
        self._buffered = 0
        self._outstanding: set[Held] = set()
        self._ready = asyncio.Event()
        self._lanes: dict[Place, Lane] = {}
        self._moved = False
        self._task: asyncio.Task[None] | None = None
        self._giving: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def trouble(self) -> str | None:
        """Why no proxy gives this consumer anything; None while one knows it."""
        if any(lane.presence.known for lane in self._lanes.values()):
            return None
        return f"no proxy of RocketMQ knows the consumer of {self._name} yet"

    async def receive(self) -> Sequence[Delivery]:
        self._start()
        while True:
            if self._closed:
                raise BrokerUnavailable(
                    f"the consumer of {self._name} was closed",
                    where=self._name,
                    next_step="consume again",
                )
            if taken := self._take():
                await faults.apoint("common.rocketmq.received")
                return taken
            self._ready.clear()
            await self._ready.wait()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        by_lane: dict[Lane, list[Held]] = {}
        for held in self._settle(deliveries):
            by_lane.setdefault(held.lane, []).append(held)
        for lane, group in by_lane.items():
            lane.ack(group)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._give_back(self._settle(deliveries))

    def poke(self) -> None:
        self._ready.set()
        self._look()

    async def close(self) -> None:
        self._closed = True
        self._ready.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        lanes, self._lanes = list(self._lanes.values()), {}
        await asyncio.gather(*(lane.close() for lane in lanes))
        self._return_buffer()
        self._give_back(self._unsettled())
        if self._giving:
            await asyncio.wait(self._giving, timeout=2)

    def _start(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(
                self._stay(), name=f"rocketmq:{self._topic}"
            )

    def _room(self) -> int:
        """A message holds one envelope or more; what turns out too much waits in the buffer."""
        return min(self._credit() - self._buffered, RECEIVE_MAX - len(self._buffer))

    def _lost(self) -> None:
        """A lane does not reach its broker: the topic may lie elsewhere by now."""
        self._routes.forget(self._topic)
        self._moved = True

    def _came(self, messages: Sequence[Held]) -> None:
        self._buffer.extend(messages)
        self._buffered += sum(envelopes_in(each.body) for each in messages)
        self._ready.set()

    def _take(self) -> list[Delivery]:
        credit = self._credit()
        now = self._link.clock.monotonic()
        taken: list[Delivery] = []
        while self._buffer and credit > 0:
            held = self._buffer[0]
            count = envelopes_in(held.body)
            fresh = held.expires_at > now
            if fresh and taken and count > credit:
                break
            self._buffer.popleft()
            self._buffered -= count
            if fresh:
                credit -= count
                taken.append(self._delivery(held))
        if taken:
            self._look()
        return taken

    def _look(self) -> None:
        for lane in self._lanes.values():
            lane.poke()

    def _delivery(self, held: Held) -> Delivery:
        self._outstanding.add(held)
        return Delivery(
            topic=self._name,
            body=held.body,
            token=held,
            published_at_ms=held.published_at_ms or None,
        )

    def _settle(self, deliveries: Sequence[Delivery]) -> list[Held]:
        """Those that are still ours and were not settled before."""
        found: list[Held] = []
        for delivery in deliveries:
            held = delivery.token
            if isinstance(held, Held) and not held.settled:
                held.settled = True
                self._outstanding.discard(held)
                found.append(held)
        return found

    def _unsettled(self) -> list[Held]:
        found = sorted(self._outstanding, key=lambda held: held.received_at)
        self._outstanding.clear()
        for held in found:
            held.settled = True
        return found

    def _return_buffer(self) -> None:
        held = list(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        self._give_back(held)

    def _give_back(self, messages: Sequence[Held]) -> None:
        by_lane: dict[Lane, list[Held]] = {}
        for held in messages:
            by_lane.setdefault(held.lane, []).append(held)
        for lane, group in by_lane.items():
            task = asyncio.get_running_loop().create_task(
                lane.give_back(group), name="rocketmq-give-back"
            )
            self._giving.add(task)
            task.add_done_callback(self._giving.discard)

    async def _stay(self) -> None:
        """Keep a lane for each broker of the topic, and nothing in the buffer that nobody can take."""
        failures = 0
        look_at = float("-inf")
        starved_since: float | None = None
        while True:
            now = self._link.clock.monotonic()
            try:
                if now >= look_at or (self._moved and not failures):
                    self._moved = False
                    await self._follow(await self._routes.of(self._topic))
                    look_at = now + self._link.settings.route_seconds
                    failures = 0
            except Exception as error:
                failures += 1
                look_at = now + pause(failures)
                self._note(error)
            starved = bool(self._buffer) and self._credit() <= 0
            starved_since = (starved_since or now) if starved else None
            if starved_since and now - starved_since >= self._link.settings.hold_seconds:
                self._return_buffer()
            self._forget_expired(now)
            await self._link.clock.sleep(0.1 if not self._lanes else 0.5)

    async def _follow(self, places: Sequence[Place]) -> None:
        readable = [place for place in places if place.readable]
        for place in [each for each in self._lanes if each not in readable]:
            await self._lanes.pop(place).close()
        for place in readable:
            if place not in self._lanes:
                self._lanes[place] = Lane(
                    self._link,
                    place,
                    topic=self._topic,
                    group=self._group,
                    room=self._room,
                    came=self._came,
                    lost=self._lost,
                )

    def _forget_expired(self, now: float) -> None:
        if self._outstanding:
            self._outstanding = {each for each in self._outstanding if each.expires_at > now}

    def _note(self, error: Exception) -> None:
        _log.warning(
            "the topic was not found, it is looked for again",
            topic=self._topic,
            cause=f"rocketmq:{self._topic}",
            error=unavailable(self._link.settings, error, self._topic, group=self._group),
        )
