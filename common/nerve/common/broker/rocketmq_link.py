"""Channels to the proxies of a RocketMQ cluster: addresses, credentials, deadlines, routes and errors."""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import uniform
from typing import Any, Final, final

from nerve.common.broker.rocketmq_names import admin_commands
from nerve.common.broker.rocketmq_stubs import Stubs, load
from nerve.common.clock import Clock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.protocol.errors import BrokerUnavailable, DiskFull, NerveError

_log = get_log("nerve.common.rocketmq")

VERSION: Final = "5.1.2"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name this is the time that an attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
MISSING: Final = frozenset({"TOPIC_NOT_FOUND", "CONSUMER_GROUP_NOT_FOUND", "NOT_FOUND"})
DENIED: Final = frozenset({"UNAUTHORIZED", "FORBIDDEN"})
# A topic that was deleted while its type is remembered answers like this.
DELETED: Final = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RocketSettings:
    """How to reach the proxies. The secret is signed with and never sent."""

    endpoint: str
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    namespace: str = ""
    """Told with every name. The open-source server ignores it, cloud services want it."""
    prefix: str = ""
    """Stands before every topic and group, where several installations share one server."""
    tls: bool = False
    ca_file: str | None = None
    publish_seconds: float = 10.0
    call_seconds: float = 5.0
    poll_seconds: float = 5.0
    """The server takes 5 to 20. A message that comes back may wait for the next poll, so it is short."""
    invisible_seconds: float = 30.0
    """How long a message stays ours; the server takes 10 s and more. It is never extended: a message
    is acknowledged once it is admitted, which takes milliseconds."""
    back_seconds: float = 1.0
    hold_seconds: float = 2.0
    heartbeat_seconds: float = 10.0
    route_seconds: float = 30.0

    @property
    def shown(self) -> str:
        return f"{'rocketmqs' if self.tls else 'rocketmq'}://{self.endpoint}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One broker of a topic and the proxy that reaches it."""

    broker: str
    address: str
    queue: Any = field(compare=False)
    """The generated MessageQueue, as the proxy told it."""
    writable: bool
    readable: bool


class Declined(Exception):
    """An answer that is not OK, by the name of its code."""

    def __init__(self, code: str, message: str) -> None:
        said = message.partition("\n")[0][:120]
        super().__init__(f"{code}: {said}" if said else code)
        self.code = code


@final
class Link:
    """Channels that are made when they are needed, in the loop that needs them."""

    def __init__(self, settings: RocketSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.stubs: Stubs = load()
        self._channels: dict[str, tuple[Any, Any]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def stub(self, address: str) -> Any:
        """The client stub of one proxy. Raises BrokerUnavailable once this is closed."""
        if self._closed:
            raise unavailable(self.settings, RuntimeError("closed"))
        if address not in self._channels:
            channel = self._channel(address)
            self._channels[address] = channel, self.stubs.client(channel)
        return self._channels[address][1]

    def discard(self, address: str) -> None:
        """Use no more a connection over which nothing comes: TCP may notice only after minutes."""
        channel, _ = self._channels.pop(address, (None, None))
        if channel is not None:
            grace = self.settings.poll_seconds + self.settings.call_seconds
            task = asyncio.get_running_loop().create_task(channel.close(grace), name="rocketmq")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def metadata(self, client: str) -> tuple[tuple[str, str], ...]:
        settings = self.settings
        found = (
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "GRPC_V2"),
            ("x-mq-client-version", VERSION),
            ("x-mq-client-id", client),
            ("x-mq-namespace", settings.namespace),
        )
        if settings.access_key is None or settings.secret_key is None:
            return found
        at = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        signed = signature(settings.access_key, settings.secret_key, at)
        return (*found, ("x-mq-date-time", at), ("authorization", signed))

    async def call(
        self, address: str, client: str, method: str, request: Any, seconds: float | None = None
    ) -> Any:
        """One answer within its deadline. Raises BrokerUnavailable."""
        seconds = self.settings.call_seconds if seconds is None else seconds
        stub = self.stub(address)
        try:
            return await once(
                lambda: getattr(stub, method)(
                    request, metadata=self.metadata(client), timeout=seconds
                )
            )
        except Exception as error:
            if self.is_silent(error):
                self.discard(address)
            raise unavailable(self.settings, error) from error

    def is_silent(self, error: BaseException) -> bool:
        """Whether nothing at all was answered."""
        code = getattr(error, "code", None)
        return callable(code) and code() == self.stubs.grpc.StatusCode.DEADLINE_EXCEEDED

    def resource(self, name: str) -> Any:
        return self.stubs.definition.Resource(name=name, resource_namespace=self.settings.namespace)

    def endpoints(self) -> Any:
        """Our own idea of where the proxies are: those of a cluster give it back in their routes."""
        definition = self.stubs.definition
        host, _, port = self.settings.endpoint.rpartition(":")
        return definition.Endpoints(
            scheme=_scheme(definition, host.strip("[]")),
            addresses=[definition.Address(host=host.strip("[]"), port=int(port))],
        )

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel, _ in channels.values():
            await channel.close(None)
        for task in list(self._closing):
            task.cancel()
        if self._closing:
            await asyncio.wait(self._closing)

    def _channel(self, address: str) -> Any:
        grpc = self.stubs.grpc
        if not self.settings.tls:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        ca_file = self.settings.ca_file
        roots = None if ca_file is None else Path(ca_file).read_bytes()
        credentials = grpc.ssl_channel_credentials(root_certificates=roots)
        return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


@final
class Routes:
    """Where a topic lies, asked again every now and then and after every error."""

    def __init__(self, link: Link, client: str) -> None:
        self._link = link
        self._client = client
        self._known: dict[str, tuple[float, list[Place]]] = {}

    async def of(self, topic: str) -> list[Place]:
        """Raises Declined with TOPIC_NOT_FOUND, or BrokerUnavailable."""
        now = self._link.clock.monotonic()
        at, places = self._known.get(topic, (0.0, []))
        if places and now - at < self._link.settings.route_seconds:
            return places
        places = await self._ask(topic)
        self._known[topic] = now, places
        return places

    def forget(self, topic: str) -> None:
        self._known.pop(topic, None)

    async def _ask(self, topic: str) -> list[Place]:
        link = self._link
        request = link.stubs.service.QueryRouteRequest(
            topic=link.resource(topic), endpoints=link.endpoints()
        )
        answer = await link.call(link.settings.endpoint, self._client, "QueryRoute", request)
        name = link.stubs.name(answer.status)
        if name != "OK":
            raise Declined(name, answer.status.message)
        return _places(link, answer.message_queues)


def _places(link: Link, queues: Any) -> list[Place]:
    """One place a broker: the proxy receives from all of a broker's queues."""
    permission = link.stubs.definition.Permission
    found: dict[tuple[str, str], Place] = {}
    for queue in queues:
        address = _address(queue.broker.endpoints) or link.settings.endpoint
        found.setdefault(
            (queue.broker.name, address),
            Place(
                broker=queue.broker.name,
                address=address,
                queue=queue,
                writable=queue.permission in (permission.WRITE, permission.READ_WRITE),
                readable=queue.permission in (permission.READ, permission.READ_WRITE),
            ),
        )
    return sorted(found.values(), key=lambda place: (place.broker, place.address))


def _address(endpoints: Any) -> str | None:
    for each in endpoints.addresses:
        return f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}"
    return None


def _scheme(definition: Any, host: str) -> Any:
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return definition.DOMAIN_NAME
    return definition.IPv4 if version == 4 else definition.IPv6


def signature(access_key: str, secret_key: str, at: str) -> str:
    """The `authorization` of a call: an HMAC over the time that stands beside it."""
    digest = hmac.new(secret_key.encode(), at.encode(), hashlib.sha1).hexdigest()
    return (
        f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={digest}"
    )


async def once(call: Callable[[], Awaitable[Any]]) -> Any:
    """Await a gRPC call. A call that ended because its channel was closed is no cancelled task."""
    try:
        return await call()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionResetError("the channel was closed") from None


def unavailable(
    settings: RocketSettings,
    error: BaseException,
    topic: str | None = None,
    *,
    group: str = "",
    address: str | None = None,
) -> NerveError:
    """What callers are told, with the commands that make what is missing.

    `address` is where the call went: a broker tells its own, which may be one that only it can reach.
    """
    if isinstance(error, NerveError):
        return error
    about = "" if topic is None else f" for {topic}"
    if address is not None and address != settings.endpoint:
        about += f" by way of {address}, the address that it told"
    step = "it is tried again by itself; `nerve doctor` says what can be reached"
    if isinstance(error, Declined) and "disk" in str(error).lower():
        return DiskFull(
            f"RocketMQ at {settings.shown} has no room{about}: {error}",
            where="--broker",
            next_step="free disk space on its brokers",
        )
    if isinstance(error, Declined) and error.code in DENIED:
        step = "set NERVE_ROCKETMQ_ACCESS_KEY and NERVE_ROCKETMQ_SECRET_KEY to keys with this right"
    elif topic is not None and is_missing(error):
        step = f"make what is missing, it is found within 20 s:\n{admin_commands(topic, group)}"
    return BrokerUnavailable(
        f"RocketMQ at {settings.shown} did not answer{about}: {_plain(error)}",
        where="--broker",
        next_step=step,
    )


def is_missing(error: BaseException) -> bool:
    """Whether a topic or a group does not exist."""
    if isinstance(error, Declined):
        return error.code in (*MISSING, DELETED) or "group not found" in str(error)
    return "group not found" in _details(error)


def _details(error: BaseException) -> str:
    """What an AioRpcError was told."""
    details = getattr(error, "details", None)
    return str(details() or "") if callable(details) else ""


def _plain(error: BaseException) -> str:
    if isinstance(error, Declined):
        return str(error)
    code = getattr(error, "code", None)
    if callable(code):  # AioRpcError, whose text has several lines
        return str(Declined(str(getattr(code(), "name", "error")), _details(error)))
    return type(error).__name__


def pause(failures: int) -> float:
    """Between two attempts; uneven, so that many clients do not come back at once."""
    backoff = Backoff(first_seconds=0.1, most_seconds=2.0)
    return backoff.after(failures) * uniform(0.5, 1.0)
