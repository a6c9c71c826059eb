"""RocketMQ 5 by its gRPC proxies: publishing in batches, consuming by polls with an invisible time.

The client is ours, over the generated stubs of the official package: its own classes acknowledge without
an answer, lose a pending receive at their end, and need ten minutes after a proxy was started anew.
"""

import asyncio
from collections.abc import Iterator, Sequence
from random import randrange
from typing import Any, Final, final
from uuid import uuid4

from nerve.common import faults
from nerve.common.broker.port import Credit, check_bodies
from nerve.common.broker.rocketmq_consumer import RocketConsumer
from nerve.common.broker.rocketmq_link import (
    Declined,
    Link,
    Place,
    RocketSettings,
    Routes,
    is_missing,
    once,
    unavailable,
)
from nerve.common.broker.rocketmq_names import admin_commands, physical
from nerve.common.broker.rocketmq_presence import Presence
from nerve.common.broker.served import Lack, Limit
from nerve.common.clock import Clock, SystemClock
from nerve.common.logs import register_secret
from nerve.protocol.identity import new_uuid7
from nerve.protocol.topics import group as group_of

BATCH_MESSAGES: Final = 64
BATCH_BYTES: Final = 2 * 1024 * 1024
"""The server refuses a batch as a whole at 4 MiB."""

RETENTION_MS: Final = 72 * 3600 * 1000
"""What `fileReservedTime` is where nobody set it. The proxy does not tell, and age alone decides: RocketMQ
drops old files also where nobody has read them."""

UNASKED: Final = {
    "fileReservedTime": "72 hours unless set otherwise: mqadmin getBrokerConfig -b BROKER:10911",
    "maxMessageSize": "4,194,304 bytes unless set otherwise; ours have at most 1,048,576",
    "retryMaxTimes": "a group is made with 999, then its messages go to %DLQ% and the group's name",
    "invisible time": "every receive states its own, 30 s; a command is acknowledged when it is"
    " admitted, before its tool starts",
}


@final
class RocketPublisher:
    """Sends to one broker of a topic while it answers, so that a topic of one queue keeps the order."""

    def __init__(self, link: Link, client: str) -> None:
        self._link = link
        self._client = client
        self._routes = Routes(link, client)
        self._turn = randrange(1 << 16)

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        place: Place | None = None
        try:
            async with asyncio.timeout(self._link.settings.publish_seconds):
                place = await self._place(topic)
                await faults.apoint("common.rocketmq.before_publish")
                for batch in batches(bodies):
                    await self._send(place, topic, batch)
        except Exception as error:
            # Nothing is known of the topic now, and another broker may take it.
            self._routes.forget(topic)
            self._turn += 1
            raise unavailable(
                self._link.settings,
                error,
                topic,
                group=physical_group(topic),
                address=None if place is None else place.address,
            ) from error
        await faults.apoint("common.rocketmq.after_publish")

    async def _place(self, topic: str) -> Place:
        places = [each for each in await self._routes.of(topic) if each.writable]
        if not places:
            raise Declined("FORBIDDEN", "no broker of the topic may be written to")
        return places[self._turn % len(places)]

    async def _send(self, place: Place, topic: str, bodies: Sequence[bytes]) -> None:
        """One request is one unit: it has one status, and its messages stay in their order."""
        link = self._link
        request = link.stubs.service.SendMessageRequest(
            messages=[self._message(topic, body) for body in bodies]
        )
        stub = link.stub(place.address)
        seconds = link.settings.publish_seconds
        answer = await once(
            lambda: stub.SendMessage(request, metadata=link.metadata(self._client), timeout=seconds)
        )
        name = link.stubs.name(answer.status)
        if name != "OK":
            raise Declined(name, answer.status.message)

    def _message(self, topic: str, body: bytes) -> Any:
        definition = self._link.stubs.definition
        message = definition.Message(topic=self._link.resource(topic), body=body)
        system = message.system_properties
        system.message_id = f"01{uuid4().hex.upper()}"
        system.message_type = definition.NORMAL
        system.body_encoding = definition.IDENTITY
        system.born_host = "nerve"
        system.born_timestamp.FromMilliseconds(self._link.clock.now_ms())
        return message


@final
class RocketBroker:
    """`Broker` over the proxies of one RocketMQ cluster."""

    def __init__(self, settings: RocketSettings | str, *, clock: Clock | None = None) -> None:
        """Raises BadInput where the extra is missing or another package is in its place."""
        if isinstance(settings, str):
            settings = RocketSettings(endpoint=settings)
        if settings.secret_key:
            register_secret(settings.secret_key)
        clock = clock or SystemClock()
        self._settings = settings
        self._client = f"nerve-{new_uuid7(clock.now_ms())}"
        self._publishing = Link(settings, clock)
        self._consuming = Link(settings, clock)
        self._publisher = RocketPublisher(self._publishing, self._client)
        self._consumers: list[RocketConsumer] = []

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed, and absent proxies waited for."""

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        check_bodies(topic, bodies)
        await self._publisher.publish(self._name(topic), bodies)

    def consume(self, topic: str, group: str, *, credit: Credit) -> RocketConsumer:
        consumer = RocketConsumer(
            self._consuming,
            Routes(self._consuming, self._client),
            name=topic,
            topic=self._name(topic),
            group=self._name(group),
            credit=credit,
        )
        self._consumers.append(consumer)
        return consumer

    @property
    def shown(self) -> str:
        return self._settings.shown

    @property
    def creates(self) -> bool:
        """A proxy can make nothing."""
        return False

    async def lacking(
        self, topics: Sequence[str], *, reads: Sequence[str], create: bool
    ) -> list[Lack]:
        """Topics that are missing, or whose group is; their steps are the commands that make both."""
        return [
            Lack(
                topic=topic,
                what=f"the topic {self._name(topic)} or its group {self._name(group_of(topic))}",
                step=admin_commands(self._name(topic), self._name(group_of(topic))),
            )
            for topic in topics
            if not await self._stands(self._name(topic))
        ]

    async def limits(self, topics: Sequence[str]) -> list[Limit]:
        await self._stands(self._name("nerve"))
        return [
            Limit(name=name, value=None, about=f"cannot be asked of a proxy; {about}")
            for name, about in UNASKED.items()
        ]

    async def retention_ms(self, topics: Sequence[str]) -> int | None:
        return RETENTION_MS

    def troubles(self) -> list[str]:
        return [each.trouble for each in self._consumers if each.trouble is not None]

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        await self._publishing.close()
        await self._consuming.close()

    def _name(self, name: str) -> str:
        return physical(f"{self._settings.prefix}{name}")

    async def _stands(self, topic: str) -> bool:
        """Whether the topic and its group exist."""
        group = physical_group(topic)
        link = self._publishing
        try:
            for place in await Routes(link, self._client).of(topic):
                presence = Presence(link, place.address, self._client, topic=topic, group=group)
                await presence.introduce()
        except Exception as error:
            if is_missing(error):
                return False
            raise unavailable(self._settings, error, topic, group=group) from error
        return True


def physical_group(topic: str) -> str:
    """The group of a physical topic: the adapter maps the names of both alike."""
    return f"{topic}-group"


def batches(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    """As few requests as the server takes, in order."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and (len(batch) == BATCH_MESSAGES or size + len(body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch
