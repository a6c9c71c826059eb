"""A RocketMQ proxy in this process: it keeps messages in memory, records what it is asked, and forgets on order."""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nerve.common.broker.rocketmq_stubs import load
from nerve.protocol.errors import BadInput


def client_or_skip() -> None:
    """Skip the test where the client's package is missing; it is an extra."""
    try:
        load()
    except BadInput as error:
        pytest.skip(str(error))


class Proxy:
    """The messaging service, as far as a consumer and a publisher use it."""

    def __init__(self) -> None:
        self.stubs = load()
        self.port = 0
        self.elsewhere: int | None = None
        """The port of another proxy, which it names as the one that has every topic."""
        self.asked: list[tuple[str, Any]] = []
        """Every request with the name of its call, in order."""
        self.metadata: list[dict[str, str]] = []
        self.known: set[str] = set()
        """Clients whose settings it has; as in a real one, in memory only."""
        self.queue: deque[Any] = deque()
        self.acked: list[str] = []
        self.answers: dict[str, deque[str]] = {}
        """Codes with which the next calls of a name are answered instead."""
        self.silent: set[str] = set()
        """Calls that are never answered."""
        self._handles = 0
        self._came = asyncio.Event()
        self._cut = asyncio.Event()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def requests(self, name: str) -> list[Any]:
        return [request for asked, request in self.asked if asked == name]

    def forget(self) -> None:
        """As a proxy that was started anew: settings gone, streams left open."""
        self.known.clear()

    def cut(self) -> None:
        """End every Telemetry stream."""
        self._cut.set()
        self._cut = asyncio.Event()

    # The names are those of the protocol.
    async def QueryRoute(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = await self._begin("QueryRoute", request, context)
        answer = self.stubs.service.QueryRouteResponse(status=status)
        definition = self.stubs.definition
        if status.code == definition.OK:
            queue = answer.message_queues.add(permission=definition.READ_WRITE)
            queue.topic.name = request.topic.name
            queue.broker.name = "broker-a"
            address = definition.Address(host="127.0.0.1", port=self.elsewhere or self.port)
            queue.broker.endpoints.addresses.append(address)
        return answer

    async def SendMessage(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = await self._begin("SendMessage", request, context)
        if status.code == self.stubs.definition.OK:
            self.queue.extend(request.messages)
            self._came.set()
        return self.stubs.service.SendMessageResponse(status=status)

    async def Heartbeat(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = await self._begin("Heartbeat", request, context)
        return self.stubs.service.HeartbeatResponse(status=status)

    async def AckMessage(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = await self._begin("AckMessage", request, context)
        answer = self.stubs.service.AckMessageResponse(status=status)
        for entry in request.entries:
            answer.entries.add(receipt_handle=entry.receipt_handle, status=status)
            if status.code == self.stubs.definition.OK:
                self.acked.append(entry.receipt_handle)
        return answer

    async def ChangeInvisibleDuration(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = await self._begin("ChangeInvisibleDuration", request, context)
        return self.stubs.service.ChangeInvisibleDurationResponse(status=status)

    async def ReceiveMessage(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        response = self.stubs.service.ReceiveMessageResponse
        status = await self._begin("ReceiveMessage", request, context)
        if status.code == self.stubs.definition.OK:
            if self._client(context) not in self.known:
                status = self._status("INTERNAL_SERVER_ERROR")
            elif not await self._wait(request.long_polling_timeout.ToMilliseconds() / 1000):
                status = self._status("MESSAGE_NOT_FOUND")
        for _ in range(request.batch_size if status.code == self.stubs.definition.OK else 0):
            if self.queue:
                yield response(message=self._handed_out())
        yield response(status=status)

    async def Telemetry(self, _: Any, context: Any) -> None:  # noqa: N802
        cut = asyncio.ensure_future(self._cut.wait())
        refused = self.stubs.grpc.StatusCode.UNAVAILABLE
        while True:
            reading = asyncio.ensure_future(context.read())
            await asyncio.wait([reading, cut], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                await context.abort(refused, "cut")
            if reading.result() == self.stubs.grpc.aio.EOF:
                cut.cancel()
                return
            status = await self._begin("Telemetry", reading.result(), context)
            if status.code != self.stubs.definition.OK:
                await context.abort(refused, "group not found")
            self.known.add(self._client(context))
            await context.write(reading.result())

    def __getattr__(self, name: str) -> Any:
        """The calls of the service that nobody here uses."""
        if not name[0].isupper():
            raise AttributeError(name)
        return None

    def _handed_out(self) -> Any:
        message = self.queue.popleft()
        self._handles += 1
        message.system_properties.receipt_handle = f"h{self._handles}"
        return message

    async def _wait(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not self.queue:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return False
        return True

    async def _begin(self, name: str, request: Any, context: Any) -> Any:
        self.asked.append((name, request))
        self.metadata.append(dict(context.invocation_metadata()))
        if name in self.silent:
            await asyncio.Event().wait()
        waiting = self.answers.get(name)
        return self._status(waiting.popleft() if waiting else "OK")

    def _status(self, name: str) -> Any:
        return self.stubs.definition.Status(code=self.stubs.definition.Code.Value(name))

    def _client(self, context: Any) -> str:
        return str(dict(context.invocation_metadata())["x-mq-client-id"])


@asynccontextmanager
async def proxy(credentials: Any = None) -> AsyncGenerator[Proxy]:
    """A proxy on a free port, with TLS where `credentials` are given."""
    client_or_skip()
    found = Proxy()
    server = await serve(found, 0, credentials)
    try:
        yield found
    finally:
        await server.stop(None)


async def serve(found: Proxy, port: int, credentials: Any = None) -> Any:
    server = found.stubs.grpc.aio.server()
    calls = sys.modules["rocketmq.grpc_protocol.service_pb2_grpc"]
    calls.add_MessagingServiceServicer_to_server(found, server)
    address = f"127.0.0.1:{port}"
    if credentials is None:
        found.port = server.add_insecure_port(address)
    else:
        found.port = server.add_secure_port(address, credentials)
    await server.start()
    return server


def codes(*names: str) -> deque[str]:
    return deque(names)


def bodies(messages: Sequence[Any]) -> list[bytes]:
    return [message.body for message in messages]
