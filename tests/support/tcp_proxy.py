"""A TCP proxy before a real server, which cuts, stalls and swallows answers on order.

It knows no protocol: what is swallowed is the first answer after bytes that a test names. It runs in a
thread of its own, so that hosts keep their links while a test's event loop comes and goes.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Self

CHUNK = 65536


class TcpProxy:
    """Forwards each connection to `host:port`; `port` is its own, on the loopback."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._links: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._swallow: bytes | None = None
        self._server: asyncio.Server | None = None
        self.port = 0
        self.swallowed = 0

    @classmethod
    @contextmanager
    def before(cls, host: str, port: int) -> Generator[Self]:
        proxy = cls(host, port)
        thread = threading.Thread(target=proxy._loop.run_forever, name="tcp-proxy", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(proxy._listen(), proxy._loop).result(10)
            yield proxy
        finally:
            asyncio.run_coroutine_threadsafe(proxy._close(), proxy._loop).result(10)
            proxy._loop.call_soon_threadsafe(proxy._loop.stop)
            thread.join(10)
            proxy._loop.close()

    @property
    def connections(self) -> int:
        return len(self._links)

    def stall(self) -> None:
        """Nothing passes and nothing is closed, in both directions, until `go_on`."""
        self._tell(self._flowing.clear)

    def go_on(self) -> None:
        self._tell(self._flowing.set)

    def cut(self) -> None:
        """End every connection, without a word to either end."""
        self._tell(self._cut)

    def refuse(self, refusing: bool = True) -> None:
        """New connections are ended at once."""
        self._refusing = refusing

    def swallow_answer_to(self, asked: bytes) -> None:
        """The next question that holds `asked` reaches the server; its answer is lost with the link."""
        self._swallow = asked

    def _tell(self, what: Callable[[], None]) -> None:
        done = threading.Event()

        def then() -> None:
            what()
            done.set()

        self._loop.call_soon_threadsafe(then)
        done.wait(10)

    def _cut(self) -> None:
        for client, server in list(self._links.items()):
            client.transport.abort()
            server.transport.abort()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self._refusing:
                with suppress(OSError, asyncio.CancelledError):
                    await self._link(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_connection(*self._to)
        self._links[writer] = asks
        asked = asyncio.Event()
        ways = (
            asyncio.create_task(self._ask(reader, asks, asked)),
            asyncio.create_task(self._answer(answers, writer, asked)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.pop(writer, None)
            asks.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        while chunk := await reader.read(CHUNK):
            await self._flowing.wait()
            if self._swallow is not None and self._swallow in chunk:
                self._swallow = None
                asked.set()
            to.write(chunk)
            await to.drain()

    async def _answer(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, asked: asyncio.Event
    ) -> None:
        while chunk := await reader.read(CHUNK):
            await self._flowing.wait()
            if asked.is_set():
                self.swallowed += 1
                return
            to.write(chunk)
            await to.drain()
