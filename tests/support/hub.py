"""A hub for tests: HTTP in front of the queue file of a folder, and what stands in the way of its answers."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nerve.common.broker.http import HttpBroker
from nerve.common.broker.http_address import HttpAddress
from nerve.common.broker.http_hub import HttpHub
from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.wakeups import Doorbell

TOKEN = "a-token-of-the-tests"


@dataclass(slots=True)
class Hub:
    under: SqliteBroker
    host: str
    port: int
    tls: bool = False
    ca_file: str | None = None

    def client(self, *, token: str = TOKEN, port: int | None = None) -> HttpBroker:
        return HttpBroker(
            HttpAddress(
                host="localhost" if self.tls else self.host,
                port=port or self.port,
                tls=self.tls,
                token=token,
                ca_file=self.ca_file,
                publish_seconds=5,
            )
        )


@asynccontextmanager
async def hub(
    directory: Path, *, tls: ssl.SSLContext | None = None, ca_file: str | None = None
) -> AsyncGenerator[Hub]:
    place = directory / "hub"
    place.mkdir(exist_ok=True)
    bell = Doorbell.open(place)
    broker = SqliteBroker(place, bell, publish_seconds=5)
    await broker.open()
    serving = HttpHub(broker, TOKEN)
    try:
        host, port = await serving.open("127.0.0.1", 0, tls=tls)
        yield Hub(broker, host, port, tls=tls is not None, ca_file=ca_file)
    finally:
        await serving.close()
        await broker.close()
        bell.close()


Spoil = Callable[[bytes, bytes], bytes | None]
"""`spoil(request, reply)`: what the client is sent instead; None cuts the connection."""


@dataclass(slots=True)
class Between:
    """A proxy that reads whole messages of small size and may spoil a reply."""

    port: int
    requests: list[bytes] = field(default_factory=list[bytes])


@asynccontextmanager
async def between(target: Hub, spoil: Spoil) -> AsyncGenerator[Between]:
    async def message(reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(
            line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line
        )
        return head + await reader.readexactly(int(fields["content-length"]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            near, far = await asyncio.open_connection(target.host, target.port)
            try:
                while True:
                    request = await message(reader)
                    made.requests.append(request)
                    far.write(request)
                    reply = spoil(request, await message(near))
                    if reply is None:
                        return
                    writer.write(reply)
                    await writer.drain()
            finally:
                far.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made = Between(server.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        server.close()
