"""Receiving from one broker of a topic: long polls, acknowledgements in batches, giving back."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from nerve.common import faults
from nerve.common.broker.rocketmq_link import (
    Declined,
    Link,
    Place,
    once,
    pause,
    unavailable,
)
from nerve.common.broker.rocketmq_presence import RECEIVE_MAX, Presence
from nerve.common.clock import Clock
from nerve.common.logs import get_log
from nerve.protocol.identity import new_uuid7

_log = get_log("nerve.common.rocketmq")

LINGER_SECONDS = 0.005
"""An acknowledgement waits so long for others: it is on nobody's way."""
_QUICK_SECONDS = 0.5

faults.register(
    "common",
    [
        "common.rocketmq.before_publish",
        "common.rocketmq.after_publish",
        "common.rocketmq.received",
        "common.rocketmq.before_ack",
        "common.rocketmq.after_ack",
    ],
)


@final
@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """A message that is ours until its handle expires. The first settlement of it counts."""

    lane: "Lane"
    body: bytes
    message_id: str
    handle: str
    expires_at: float
    received_at: float
    published_at_ms: int
    settled: bool = field(default=False)


@final
class Lane:
    """One broker of one topic. `room` says how many messages may be asked for, `came` takes them,
    `lost` is called whenever the broker is not reached."""

    def __init__(
        self,
        link: Link,
        place: Place,
        *,
        topic: str,
        group: str,
        room: Callable[[], int],
        came: Callable[[Sequence[Held]], None],
        lost: Callable[[], None],
    ) -> None:
        self._link = link
        self.place = place
        self._client = f"nerve-{new_uuid7(link.clock.now_ms())}"
        self._topic = topic
        self._group = group
        self._room = room
        self._came = came
        self._lost = lost
        self._look = asyncio.Event()
        self._acks: deque[Held] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self.presence = Presence(
            link, place.address, self._client, topic=topic, group=group, lost=lost
        )
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.presence.keep(), name=f"rocketmq-presence:{topic}"),
            loop.create_task(self._receive(), name=f"rocketmq:{topic}"),
        ]

    @property
    def _clock(self) -> Clock:
        return self._link.clock

    def poke(self) -> None:
        self._look.set()

    def ack(self, held: Sequence[Held]) -> None:
        self._acks.extend(held)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(
                self._flush(), name="rocketmq-ack"
            )

    async def give_back(self, held: Sequence[Held]) -> None:
        """Let others see these soon, one after the other so that they come back in their order; what
        cannot be told comes back when its time is over."""
        for each in held:
            if each.expires_at > self._clock.monotonic():
                await self._change(each)

    async def close(self) -> None:
        """Stop asking, then write what is acknowledged. A poll that is under way is cut: what the
        proxy has for it becomes visible again by itself."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            await asyncio.wait([flushing], timeout=2)
            flushing.cancel()
            await asyncio.wait([flushing])

    async def _receive(self) -> None:
        """Poll for ever; after an error again, later and later."""
        failures = 0
        while True:
            try:
                await self.presence.ready()
                count = await self._until_room()
                await self._poll(count)
                failures = 0
            except Exception as error:
                failures += 1
                self._note(error)
                await self._clock.sleep(pause(failures))

    def _note(self, error: Exception) -> None:
        if self._link.is_silent(error):
            self._link.discard(self.place.address)
        if not isinstance(error, Declined) or error.code != "TOO_MANY_REQUESTS":
            # Whatever went wrong, a proxy that lost our settings would answer like this.
            self.presence.doubt()
            self._lost()
        _log.warning(
            "receiving was interrupted, it goes on by itself",
            topic=self._topic,
            cause=f"rocketmq:{self._topic}",
            error=unavailable(
                self._link.settings,
                error,
                self._topic,
                group=self._group,
                address=self.place.address,
            ),
        )

    async def _until_room(self) -> int:
        while (count := min(self._room(), RECEIVE_MAX)) <= 0:
            self._look.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self._look.wait()
            except TimeoutError:
                pass
        return count

    async def _poll(self, count: int) -> None:
        asked_at = self._clock.monotonic()
        messages, status = await once(lambda: self._ask(count))
        if messages:
            self._came(messages)
        name = self._link.stubs.name(status) if status is not None else "no status"
        if name not in ("OK", "MESSAGE_NOT_FOUND"):
            raise Declined(name, "" if status is None else status.message)
        if not messages and self._clock.monotonic() - asked_at < _QUICK_SECONDS:
            # A server that holds no poll, for instance because too many are waiting.
            await self._clock.sleep(pause(1))

    async def _ask(self, count: int) -> tuple[list[Held], Any]:
        """One ReceiveMessage to its end: what came, and the last status."""
        link, settings = self._link, self._link.settings
        definition = link.stubs.definition
        request = link.stubs.service.ReceiveMessageRequest(
            group=link.resource(self._group),
            message_queue=self.place.queue,
            filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
            batch_size=count,
            auto_renew=False,
        )
        request.invisible_duration.FromMilliseconds(int(settings.invisible_seconds * 1000))
        request.long_polling_timeout.FromMilliseconds(int(settings.poll_seconds * 1000))
        answers = link.stub(self.place.address).ReceiveMessage(
            request,
            metadata=link.metadata(self._client),
            timeout=settings.poll_seconds + settings.call_seconds,
        )
        found: list[Held] = []
        status = None
        try:
            async for part in answers:
                kind = part.WhichOneof("content")
                if kind == "message":
                    found.append(self._held(part.message))
                elif kind == "status":
                    status = part.status
        except BaseException:
            # They are ours now, whatever happened to the rest.
            if found:
                self._came(found)
            raise
        return found, status

    def _held(self, message: Any) -> Held:
        now = self._clock.monotonic()
        system = message.system_properties
        return Held(
            lane=self,
            body=message.body,
            message_id=system.message_id,
            handle=system.receipt_handle,
            received_at=now,
            # A little early: the proxy's clock began before the message came.
            expires_at=now + self._link.settings.invisible_seconds - 1.0,
            published_at_ms=system.born_timestamp.ToMilliseconds(),
        )

    async def _flush(self) -> None:
        failures = 0
        await self._clock.sleep(LINGER_SECONDS)
        while batch := self._due():
            await faults.apoint("common.rocketmq.before_ack")
            try:
                again = await self._acknowledge(batch)
            except Exception as error:
                _log.debug("acknowledging is tried again", topic=self._topic, error=error)
                again = batch
            await faults.apoint("common.rocketmq.after_ack")
            failures = failures + 1 if again else 0
            if again:
                self._acks.extendleft(reversed(again))
                await self._clock.sleep(pause(failures))

    def _due(self) -> list[Held]:
        """The next batch; what has expired is delivered again, and the inbox knows it."""
        now = self._clock.monotonic()
        batch: list[Held] = []
        while self._acks and len(batch) < RECEIVE_MAX:
            held = self._acks.popleft()
            if held.expires_at > now:
                batch.append(held)
        return batch

    async def _acknowledge(self, batch: Sequence[Held]) -> list[Held]:
        """Those that should be tried again."""
        link, service = self._link, self._link.stubs.service
        request = service.AckMessageRequest(
            group=link.resource(self._group),
            topic=link.resource(self._topic),
            entries=[
                service.AckMessageEntry(message_id=each.message_id, receipt_handle=each.handle)
                for each in batch
            ],
        )
        answer = await link.call(self.place.address, self._client, "AckMessage", request)
        name = link.stubs.name
        if name(answer.status) == "OK":
            return []
        bad = {
            entry.receipt_handle: name(entry.status)
            for entry in answer.entries
            if name(entry.status) != "OK"
        }
        if not bad:
            raise Declined(name(answer.status), answer.status.message)
        # An invalid handle is one that expired: never a success, and useless to repeat.
        return [
            each
            for each in batch
            if bad.get(each.handle, "OK") not in ("OK", "INVALID_RECEIPT_HANDLE")
        ]

    async def _change(self, held: Held) -> None:
        link, settings = self._link, self._link.settings
        request = link.stubs.service.ChangeInvisibleDurationRequest(
            group=link.resource(self._group),
            topic=link.resource(self._topic),
            receipt_handle=held.handle,
            message_id=held.message_id,
        )
        request.invisible_duration.FromMilliseconds(int(settings.back_seconds * 1000))
        try:
            await link.call(self.place.address, self._client, "ChangeInvisibleDuration", request)
        except Exception as error:
            _log.debug("a message comes back only later", topic=self._topic, error=error)
