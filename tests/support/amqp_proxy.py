"""A proxy before RabbitMQ that knows frames: it eats confirms or acknowledgements, and keeps what was published."""

import asyncio
import struct
from collections.abc import AsyncIterator

from support.tcp_proxy import TcpProxy

METHOD, HEADER, BODY = 1, 2, 3
PUBLISH, ACK = (60, 40), (60, 80)
GREETING = 8


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Whole frames, until the other end is gone."""
    try:
        while True:
            head = await reader.readexactly(7)
            (size,) = struct.unpack(">I", head[3:])
            yield head + await reader.readexactly(size + 1)
    except (asyncio.IncompleteReadError, ConnectionError):
        return


def method(frame: bytes) -> tuple[int, int] | None:
    if frame[0] != METHOD:
        return None
    found: tuple[int, int] = struct.unpack(">HH", frame[7:11])
    return found


def routing_key(frame: bytes) -> str:
    at = 13 + 1 + frame[13]  # behind two reserved bytes and the exchange
    return frame[at + 1 : at + 1 + frame[at]].decode()


class AmqpProxy(TcpProxy):
    """`eating_confirms` and `eating_acks` are set and cleared by a test."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.eating_confirms = False
        self.eating_acks = False
        self.eaten = 0
        self.published: list[tuple[str, bytes]] = []

    async def _ask(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        to.write(await reader.readexactly(GREETING))
        started: dict[bytes, tuple[str, bytes, int]] = {}
        async for frame in frames(reader):
            await self._flowing.wait()
            self._keep(frame, started)
            if self.eating_acks and method(frame) == ACK:
                self.eaten += 1
                continue
            to.write(frame)
            await to.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        async for frame in frames(reader):
            await self._flowing.wait()
            if self.eating_confirms and method(frame) == ACK:
                self.eaten += 1
                continue
            to.write(frame)
            await to.drain()

    def _keep(self, frame: bytes, started: dict[bytes, tuple[str, bytes, int]]) -> None:
        """Put together what is published: a method, a header with the size, and the body's frames."""
        channel = frame[1:3]
        if method(frame) == PUBLISH:
            started[channel] = (routing_key(frame), b"", 0)
        elif channel in started:
            topic, body, size = started[channel]
            if frame[0] == HEADER:
                (size,) = struct.unpack(">Q", frame[11:19])
            elif frame[0] == BODY:
                body += frame[7:-1]
            started[channel] = (topic, body, size)
            if frame[0] == BODY and len(body) == size:
                self.published.append((topic, body))
                del started[channel]
