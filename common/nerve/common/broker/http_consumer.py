"""One consumer of a topic on a hub: a long poll on a connection of its own, asked only when somebody waits."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast, final

from nerve.common import faults
from nerve.common.broker.http_link import Connection, HttpLink, Open, away, closed, refused
from nerve.common.broker.http_wire import (
    FRAMES,
    JSON,
    BadMessage,
    Reply,
    json_bytes,
    json_object,
    text_of,
    unframed,
)
from nerve.common.broker.port import Credit, Delivery, envelopes_in
from nerve.common.clock import Clock, wait_event
from nerve.protocol.errors import BrokerUnavailable

POLL_SECONDS = 15
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 2.0

faults.register("common", ["common.http.received", "common.http.before_ack"])


@final
@dataclass(frozen=True, slots=True)
class _Token:
    """A delivery of one session; another one knows nothing of it."""

    session: str
    name: str


@final
class HttpConsumer:
    """A session is one connection: after any doubt another one begins, and the hub gives back the old."""

    def __init__(
        self,
        link: HttpLink,
        topic: str,
        group: str,
        *,
        credit: Credit,
        clock: Clock,
        closed: Callable[["HttpConsumer"], object],
    ) -> None:
        self._link = link
        self._topic = topic
        self._group = group
        self._credit = credit
        self._clock = clock
        self._on_close = closed
        self._connection = link.connection()
        self._session = secrets.token_hex(12)
        self._buffer: deque[Delivery] = deque()
        self._looked = asyncio.Event()
        self._poll: asyncio.Task[None] | None = None
        self._error: BrokerUnavailable | None = None
        self._settling: asyncio.Task[None] | None = None
        self._acks: list[str] = []
        self._nacks: list[str] = []
        self._closed = False
        self.trouble: str | None = None

    async def receive(self) -> Sequence[Delivery]:
        while not self._closed:
            self._looked.clear()
            if self._credit() > 0:
                if taken := self._take():
                    await faults.apoint("common.http.received")
                    return taken
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                if self._poll is None:
                    work = self._ask(self._connection, self._credit())
                    self._poll = asyncio.get_running_loop().create_task(work, name="http-poll")
            await wait_event(self._clock, self._looked, None)
        raise closed(self._link.address)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(deliveries, self._acks)

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(deliveries, self._nacks)

    def poke(self) -> None:
        self._looked.set()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        self.poke()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while self._settling is not None:
                    await asyncio.wait([self._settling])
                with suppress(Open, BrokerUnavailable):
                    await self._link.call("POST", "/v1/end", json_bytes({"session": self._session}))
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.wait([self._poll])
        self._connection.close()

    def _take(self) -> list[Delivery]:
        room = self._credit()
        taken: list[Delivery] = []
        while self._buffer and room > 0:
            size = envelopes_in(self._buffer[0].body)
            if taken and size > room:
                break
            taken.append(self._buffer.popleft())
            room -= size
        return taken

    async def _ask(self, connection: Connection, credit: int) -> None:
        """One poll; what it brings, or why it brought nothing, is there for the next look."""
        fields = {
            "session": self._session,
            "topic": self._topic,
            "group": self._group,
            "credit": credit,
            "seconds": POLL_SECONDS,
        }
        try:
            async with asyncio.timeout(POLL_SECONDS + ANSWER_SECONDS):
                reply = await connection.call("POST", "/v1/receive", json_bytes(fields), {}, JSON)
            self._buffer.extend(self._deliveries(reply))
            self.trouble = None
        except (Open, BadMessage, TimeoutError, BrokerUnavailable) as error:
            self._begin_anew()
            self._error = (
                error
                if isinstance(error, BrokerUnavailable)
                else away(self._link.address, str(error) or type(error).__name__)
            )
            self.trouble = self._error.message
        finally:
            self._poll = None
            self._looked.set()

    def _begin_anew(self) -> None:
        """What the old session held comes again, to this one or another."""
        self._connection.close()
        self._session = secrets.token_hex(12)
        self._buffer.clear()
        self._acks.clear()
        self._nacks.clear()

    def _deliveries(self, reply: Reply) -> list[Delivery]:
        """Raises BadMessage where it is no list of deliveries, and what an error document says."""
        if reply.status != 200 or reply.headers.get("content-type") != FRAMES:
            refusal = refused(self._link.address, reply)
            if isinstance(refusal, BrokerUnavailable):
                raise refusal
            raise BadMessage(f"a reply of status {reply.status} that says nothing")
        parts = unframed(reply.body)
        head = json_object(parts[0] if parts else b"")
        told = head.get("deliveries")
        if head.get("session") != self._session or not isinstance(told, list):
            raise BadMessage("deliveries of another session")
        listed = cast("list[object]", told)
        if len(listed) != len(parts) - 1:
            raise BadMessage("deliveries without their bodies")
        return [self._delivery(each, body) for each, body in zip(listed, parts[1:], strict=True)]

    def _delivery(self, told: object, body: bytes) -> Delivery:
        if not isinstance(told, dict) or not body:
            raise BadMessage("a delivery that is none")
        fields = cast("dict[str, object]", told)
        at = fields.get("at")
        return Delivery(
            topic=self._topic,
            body=body,
            token=_Token(self._session, text_of(fields, "token")),
            published_at_ms=at if isinstance(at, int) else None,
        )

    def _settle(self, deliveries: Sequence[Delivery], into: list[str]) -> None:
        for each in deliveries:
            if isinstance(each.token, _Token) and each.token.session == self._session:
                into.append(each.token.name)
        if (self._acks or self._nacks) and self._settling is None:
            work = self._tell()
            self._settling = asyncio.get_running_loop().create_task(work, name="http-settle")

    async def _tell(self) -> None:
        """Many at once. What cannot be told comes again with another session."""
        try:
            await faults.apoint("common.http.before_ack")
            while self._acks or self._nacks:
                fields = {"session": self._session, "ack": self._acks[:], "nack": self._nacks[:]}
                self._acks.clear()
                self._nacks.clear()
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._link.call("POST", "/v1/settle", json_bytes(fields))
        except (Open, TimeoutError, BrokerUnavailable, faults.InjectedFault):
            self._begin_anew()
            self.poke()
        finally:
            self._settling = None
