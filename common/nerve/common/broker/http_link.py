"""Connections of a client to its hub: each carries one call at a time and is thrown away after any doubt."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import final

from nerve.common.broker.http_address import HttpAddress
from nerve.common.broker.http_wire import (
    HEAD_BYTES_MAX,
    JSON,
    BadMessage,
    Reply,
    json_object,
    read_reply,
    request_bytes,
)
from nerve.protocol.errors import BrokerUnavailable, TooLarge

CONNECT_SECONDS = 10.0
IDLE_MAX = 4


class Open(Exception):
    """Nobody can know what became of a call: it was not answered, or not in a way that says it."""


@final
class Connection:
    """One connection, opened by its first call."""

    def __init__(self, address: HttpAddress, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._context = context
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], kind: str
    ) -> Reply:
        """Raises Open, and then the connection is closed."""
        address = self._address
        try:
            if self._streams is None:
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._streams = await asyncio.open_connection(
                        address.host, address.port, ssl=self._context, limit=HEAD_BYTES_MAX
                    )
            reader, writer = self._streams
            given = {"authorization": f"Bearer {address.token}", "content-type": kind, **headers}
            host = f"{address.host}:{address.port}"
            writer.write(request_bytes(method, target, host, given, body))
            await writer.drain()
            return await read_reply(reader)
        except (OSError, BadMessage, TimeoutError) as error:
            self.close()
            raise Open(type(error).__name__) from error
        except BaseException:
            # The answer of a call that was given up must not be taken for that of the next one.
            self.close()
            raise

    def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            with suppress(OSError, RuntimeError):
                streams[1].close()


@final
class HttpLink:
    """A few connections that calls share."""

    def __init__(self, address: HttpAddress) -> None:
        self.address = address
        self._context = address.context()
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(IDLE_MAX)
        self._closed = False

    def connection(self) -> Connection:
        """One of the caller's own."""
        return Connection(self.address, self._context)

    async def call(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        kind: str = JSON,
    ) -> Reply:
        """Raises Open, and BrokerUnavailable once closed."""
        async with self._room:
            if self._closed:
                raise closed(self.address)
            connection = self._idle.pop() if self._idle else self.connection()
            reply = await connection.call(method, target, body, headers or {}, kind)
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)
            return reply

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def refused(address: HttpAddress, reply: Reply) -> BrokerUnavailable | TooLarge | None:
    """What an error document says; None where the reply is none, and the matter is open."""
    if reply.status < 400 or reply.headers.get("content-type") != JSON:
        return None
    try:
        error = json_object(reply.body)["error"]
        code, message = error["code"], error["message"]
        if not isinstance(code, str) or not isinstance(message, str):
            return None
        step = error.get("next_step")
    except (BadMessage, KeyError, TypeError, AttributeError):
        return None
    if code == TooLarge.code:
        return TooLarge(message[:500], where=address.shown, next_step="Send less")
    return BrokerUnavailable(
        f"the hub at {address.shown} refused ({code[:64]}): {message[:500]}",
        where="--broker",
        next_step=step[:500] if isinstance(step, str) else "look at the hub's log",
    )


def closed(address: HttpAddress) -> BrokerUnavailable:
    return BrokerUnavailable(
        "the connection to the hub is closed",
        where=address.shown,
        next_step="The message stays in the outbox and is sent when the host runs again",
    )


def away(address: HttpAddress, what: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"the hub at {address.shown} did not answer as agreed: {what}",
        where="--broker",
        next_step="it is asked again by itself; `nerve hub` starts one",
    )
