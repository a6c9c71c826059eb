"""`Broker` over a hub: confirms are receipts, and what is not a receipt is asked for again under its id."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, final
from urllib.parse import quote

from nerve.common import faults
from nerve.common.broker.http_address import HttpAddress
from nerve.common.broker.http_consumer import HttpConsumer
from nerve.common.broker.http_link import HttpLink, Open, away, closed, refused
from nerve.common.broker.http_wire import FRAMES, BadMessage, Reply, framed, json_object, number_of
from nerve.common.broker.port import Credit, check_bodies
from nerve.common.clock import Clock, SystemClock
from nerve.common.lifecycle import Backoff
from nerve.protocol.identity import new_uuid7

REQUEST_BYTES = 4 * 1024 * 1024

faults.register("common", ["common.http.before_publish", "common.http.after_publish"])


@final
class HttpBroker:
    def __init__(self, address: HttpAddress, *, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock or SystemClock()
        self._link = HttpLink(address)
        self._consumers: list[HttpConsumer] = []
        self._closed = False

    async def open(self) -> None:
        """Nothing to do: connections are made when they are needed, and an absent hub is waited for."""
        if self._closed:
            self._closed, self._link = False, HttpLink(self._address)

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        check_bodies(topic, bodies)
        if self._closed:
            raise closed(self._address)
        await faults.apoint("common.http.before_publish")
        try:
            async with asyncio.timeout(self._address.publish_seconds):
                for part in _parts(bodies):
                    await self._confirmed(topic, part)
        except TimeoutError:
            raise away(self._address, "no receipt within the deadline") from None
        await faults.apoint("common.http.after_publish")

    def consume(self, topic: str, group: str, *, credit: Credit) -> HttpConsumer:
        consumer = HttpConsumer(
            self._link,
            topic,
            group,
            credit=credit,
            clock=self._clock,
            closed=self._consumers.remove,
        )
        self._consumers.append(consumer)
        return consumer

    async def waiting(self, topics: Sequence[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for topic in topics:
            try:
                reply = await self._link.call("GET", f"/v1/waiting?topic={quote(topic, safe='')}")
                counts = json_object(reply.body).get("waiting")
                if isinstance(counts, dict) and topic in counts:
                    found[topic] = number_of(cast("Mapping[str, Any]", counts), topic)
            except (Open, BadMessage) as error:
                raise away(self._address, str(error)) from None
        return found

    def troubles(self) -> list[str]:
        return [each.trouble for each in self._consumers if each.trouble is not None]

    async def close(self) -> None:
        self._closed = True
        for consumer in self._consumers[:]:
            await consumer.close()
        self._link.close()

    async def _confirmed(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Ask until there is a receipt or a refusal: the same request, under the same id."""
        request, body = new_uuid7(self._clock.now_ms()), framed(bodies)
        target = f"/v1/publish?topic={quote(topic, safe='')}"
        pause, failures = Backoff(first_seconds=0.02, most_seconds=1.0), 0
        while True:
            try:
                reply = await self._link.call(
                    "POST", target, body, headers={"nerve-request": request}, kind=FRAMES
                )
                if _is_receipt(reply, request, len(bodies)):
                    return
                refusal = refused(self._address, reply)
                if refusal is not None:
                    raise refusal
            except Open as error:
                if self._closed:
                    raise closed(self._address) from error
            failures += 1
            await self._clock.sleep(pause.after(failures))


def _is_receipt(reply: Reply, request: str, bodies: int) -> bool:
    """Whether it says exactly that this request is durable; a success that does not says nothing."""
    if reply.status != 200:
        return False
    try:
        fields = json_object(reply.body)
        return fields.get("request") == request and number_of(fields, "bodies") == bodies
    except BadMessage:
        return False


def _parts(bodies: Sequence[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and size + len(body) > REQUEST_BYTES:
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part
