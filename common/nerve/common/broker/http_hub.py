"""A hub: the broker of its directory, reached over HTTP by clients that hold the token.

Everything durable is the broker's below. A session is a connection that polls: when it ends, what it
holds goes back. Receipts of the last publishes are kept in memory, so that a client which could not read
one asks again under the same id and doubles nothing.
"""

import asyncio
import hmac
import socket
import ssl
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final

from nerve.common import faults
from nerve.common.broker.backlog import waiting_on
from nerve.common.broker.http_session import Sessions
from nerve.common.broker.http_wire import (
    FRAMES,
    HEAD_BYTES_MAX,
    JSON,
    BadMessage,
    Request,
    framed,
    json_bytes,
    json_object,
    number_of,
    read_request,
    reply_bytes,
    text_of,
    texts_of,
    unframed,
)
from nerve.common.broker.port import Broker
from nerve.common.logs import get_log
from nerve.protocol.errors import BadInput, NerveError, NotFound, TooLarge, Unauthorized

_log = get_log("nerve.common.hub")

RECEIPTS_MAX = 10_000
WAIT_SECONDS_MAX = 20

faults.register("common", ["common.hub.published", "common.hub.before_reply"])


@final
class HttpHub:
    """Serves one broker, which stays the caller's."""

    def __init__(self, broker: Broker, token: str) -> None:
        self._broker = broker
        self._token = f"Bearer {token}".encode()
        self._sessions = Sessions(broker)
        self._receipts: OrderedDict[str, int] = OrderedDict()
        self._publishing: dict[str, asyncio.Task[int]] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; the address as it came out (port 0 takes a free one). Raises OSError."""
        self._server = await asyncio.start_server(
            self._accepted, host, port, ssl=tls, limit=HEAD_BYTES_MAX
        )
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await self._sessions.close()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="hub")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: set[str] = set()
        _notice_death(writer)
        try:
            while (request := await read_request(reader)) is not None:
                answer = await self._answered(request, reader, mine)
                if answer is None:
                    return
                await faults.apoint("common.hub.before_reply")
                writer.write(answer)
                await writer.drain()
        except BadMessage as error:
            with suppress(OSError):
                writer.write(_refusal(400, BadInput(str(error), where="http")))
        except (OSError, faults.InjectedFault):
            pass
        finally:
            writer.close()
            for session in mine:
                await self._sessions.end(session)

    async def _answered(
        self, request: Request, reader: asyncio.StreamReader, mine: set[str]
    ) -> bytes | None:
        """The reply; None where the client hung up while it was made."""
        if (request.method, request.path) == ("GET", "/v1/health"):
            return reply_bytes(200, json_bytes({"status": "ok"}))
        try:
            self._authorize(request.headers)
            if request.path == "/v1/receive":
                return await self._receive(request, reader, mine)
            return reply_bytes(200, json_bytes(await self._routed(request)))
        except BadMessage as error:
            return _refusal(400, BadInput(str(error), where="http"))
        except Unauthorized as error:
            return _refusal(401, error)
        except NotFound as error:
            return _refusal(404, error)
        except TooLarge as error:
            return _refusal(413, error)
        except NerveError as error:
            return _refusal(503, error)
        except faults.InjectedFault:
            raise
        except Exception as error:
            _log.error("a call of the hub failed", cause="hub", error=error)
            return reply_bytes(500, b"{}")

    def _authorize(self, headers: Mapping[str, str]) -> None:
        given = headers.get("authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, self._token):
            raise Unauthorized(
                "the token is missing or is not that of this hub",
                where="authorization",
                next_step="give both sides the same NERVE_HTTP_TOKEN or NERVE_HTTP_TOKEN_FILE",
            )

    async def _routed(self, request: Request) -> dict[str, Any]:
        match request.method, request.path:
            case "POST", "/v1/publish":
                return await self._published(request)
            case "POST", "/v1/settle":
                fields = json_object(request.body)
                count = self._sessions.settle(
                    text_of(fields, "session"), texts_of(fields, "ack"), texts_of(fields, "nack")
                )
                return {"settled": count}
            case "POST", "/v1/end":
                await self._sessions.end(text_of(json_object(request.body), "session"))
                return {"ended": True}
            case "GET", "/v1/waiting":
                topic = text_of(request.query, "topic")
                return {"waiting": dict(await waiting_on(self._broker, [topic]))}
            case _:
                raise NotFound(
                    "the hub has no such call", where="path", next_step="use a nerve of its version"
                )

    async def _published(self, request: Request) -> dict[str, Any]:
        id, topic = text_of(request.headers, "nerve-request"), text_of(request.query, "topic")
        done = self._receipts.get(id)
        if done is None:
            task = self._publishing.get(id)
            if task is None:
                work = self._publish(id, topic, unframed(request.body))
                task = asyncio.get_running_loop().create_task(work, name="hub-publish")
                self._publishing[id] = task
                task.add_done_callback(lambda _: self._publishing.pop(id, None))
            done = await asyncio.shield(task)
        return {"request": id, "bodies": done}

    async def _publish(self, id: str, topic: str, bodies: list[bytes]) -> int:
        if not all(bodies):
            raise BadMessage("an empty body")
        await self._broker.publish(topic, bodies)
        self._receipts[id] = len(bodies)
        if len(self._receipts) > RECEIPTS_MAX:
            self._receipts.popitem(last=False)
        await faults.apoint("common.hub.published")
        return len(bodies)

    async def _receive(
        self, request: Request, reader: asyncio.StreamReader, mine: set[str]
    ) -> bytes | None:
        fields = json_object(request.body)
        session = text_of(fields, "session")
        mine.add(session)
        poll = asyncio.ensure_future(
            self._sessions.receive(
                session,
                text_of(fields, "topic"),
                text_of(fields, "group"),
                credit=number_of(fields, "credit"),
                seconds=min(number_of(fields, "seconds"), WAIT_SECONDS_MAX),
            )
        )
        gone = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait([poll, gone], return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return None
            deliveries = poll.result()
        finally:
            for task in (poll, gone):
                task.cancel()
            await asyncio.wait([poll, gone])
        head = {
            "session": session,
            "deliveries": [
                {"token": token, "at": each.published_at_ms} for token, each in deliveries
            ],
        }
        bodies = [each.body for _, each in deliveries]
        return reply_bytes(200, framed([json_bytes(head), *bodies]), FRAMES)


def _notice_death(writer: asyncio.StreamWriter) -> None:
    """A machine that lost its power says no farewell: without an answer the connection ends by itself."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)


def _refusal(status: int, error: NerveError) -> bytes:
    return reply_bytes(status, json_bytes({"error": error.to_json()}), JSON)
