"""An HTTP relay before a real S3 server that is slow, says 503, forgets, spoils or swallows on order."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

_BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_NONE = b"<Error><Code>NoSuchKey</Code><Message>The key does not exist.</Message></Error>"


@dataclass(slots=True)
class _Request:
    method: str
    path: str
    head: bytes
    body: bytes


@dataclass(slots=True)
class S3Faults:
    """What is wrong at the moment; each fault lasts until it is taken back."""

    to: str
    slow_seconds: float = 0.0
    busy: bool = False
    stale_seconds: float = 0.0
    spoil: bool = False
    swallow_puts: bool = False
    """A put is made, and answered as if the server could not."""
    url: str = ""
    seen: list[str] = field(default_factory=list[str])
    heads: list[bytes] = field(default_factory=list[bytes])
    _put: dict[str, float] = field(default_factory=dict[str, float])
    _tasks: set[asyncio.Task[None] | None] = field(default_factory=set[asyncio.Task[None] | None])

    @classmethod
    @asynccontextmanager
    async def before(cls, endpoint: str) -> AsyncGenerator[Self]:
        faults = cls(endpoint)
        server = await asyncio.start_server(faults._serve, "127.0.0.1", 0, limit=1 << 20)
        faults.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield faults
        finally:
            server.close()
            for task in faults._tasks:
                if task is not None:
                    task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                request = await _read_request(reader, writer)
                self.seen.append(f"{request.method} {request.path}")
                self.heads.append(request.head)
                writer.write(await self._answer(request))
                await writer.drain()
        writer.close()

    async def _answer(self, request: _Request) -> bytes:
        await asyncio.sleep(self.slow_seconds)
        if self.busy:
            return _response(503, "Slow Down", _BUSY)
        reads = request.method in ("GET", "HEAD")
        age = time.monotonic() - self._put.get(request.path, -1e9)
        if reads and age < self.stale_seconds:
            return _response(404, "Not Found", b"" if request.method == "HEAD" else _NONE)
        answer = await self._forward(request)
        if request.method == "PUT":
            self._put.setdefault(request.path, time.monotonic())
            if self.swallow_puts:
                return _response(503, "Slow Down", _BUSY)
        if self.spoil and request.method == "GET":
            head, _, body = answer.partition(b"\r\n\r\n")
            return head + b"\r\n\r\n" + b"~" * len(body)
        return answer

    async def _forward(self, request: _Request) -> bytes:
        there = urlsplit(self.to)
        reader, writer = await asyncio.open_connection(there.hostname, there.port)
        writer.write(request.head + request.body)
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(_header(head, b"content-length") or 0)
        chunked = (_header(head, b"transfer-encoding") or b"").lower() == b"chunked"
        body = b""
        if request.method != "HEAD" and chunked:
            head, body = await _unchunked(reader, head)
        elif request.method != "HEAD":
            body = await reader.readexactly(length)
        writer.close()
        return head + body


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Request:
    head = await reader.readuntil(b"\r\n\r\n")
    if _header(head, b"expect"):
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:")]
        head = b"\r\n".join(lines)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
    body = await reader.readexactly(int(_header(head, b"content-length") or 0))
    method, path, _ = head.split(b" ", 2)
    return _Request(method.decode(), path.decode(), head, body)


async def _unchunked(reader: asyncio.StreamReader, head: bytes) -> tuple[bytes, bytes]:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    lines = [
        line for line in head.split(b"\r\n") if not line.lower().startswith(b"transfer-encoding:")
    ]
    return b"\r\n".join([*lines[:-2], b"Content-Length: %d" % len(body), b"", b""]), body


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def _response(status: int, word: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} {word}\r\nContent-Type: application/xml\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
