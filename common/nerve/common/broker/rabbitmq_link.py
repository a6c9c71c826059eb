"""A connection to RabbitMQ that is made when it is needed and again when it was lost."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, final

from nerve.common.broker.authorities import trusting
from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.clock import Clock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.protocol.errors import BrokerUnavailable, NerveError

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection

V = TypeVar("V")

_log = get_log("nerve.common.rabbitmq")


@final
class Link:
    """Not one of aio-pika's robust connections: those cancel running callbacks when a channel closes,
    raise into whoever publishes during an outage, and declare again what an operator deleted."""

    def __init__(self, settings: RabbitSettings, name: str, clock: Clock) -> None:
        self._settings = settings
        self._name = name
        self._clock = clock
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def channel(self, *, confirms: bool = False) -> "AbstractChannel":
        """A new channel. Raises BrokerUnavailable."""
        return await self.guarded(lambda: self._channel(confirms))

    async def guarded(self, call: Callable[[], Awaitable[V]]) -> V:
        """What `call` returns within the connect deadline, or BrokerUnavailable with a plain cause."""
        from aiormq.exceptions import ChannelClosed

        if self._closed:
            raise unavailable(self._settings, RuntimeError("closed"))
        try:
            async with asyncio.timeout(self._settings.connect_seconds):
                return await call()
        except NerveError:
            raise
        except BaseException as error:
            if is_ours(error):
                raise
            if not isinstance(error, ChannelClosed):
                # The connection is not to be trusted: a server that crashed one channel (RabbitMQ
                # 3.10 does where a queue is consumed while it is being made) closes all of it.
                self._discard()
            raise unavailable(self._settings, error) from error

    async def server(self) -> dict[str, str]:
        """What the server said of itself, and what it agreed to on this connection."""
        transport = (await self.guarded(self._open)).transport
        if transport is None:
            return {}
        properties, tune = (
            transport.connection.server_properties,
            transport.connection.connection_tune,
        )
        told = {name: properties.get(name, "") for name in ("product", "version", "cluster_name")}
        return {
            **{name: v.decode() if isinstance(v, bytes) else str(v) for name, v in told.items()},
            "frame_max": str(tune.frame_max),
            "channel_max": str(tune.channel_max),
            "heartbeat": str(tune.heartbeat),
        }

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            task = asyncio.get_running_loop().create_task(_quietly(connection), name="rabbitmq")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self._closed = True
        self._discard()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _channel(self, confirms: bool) -> "AbstractChannel":
        connection = await self._open()
        return await connection.channel(publisher_confirms=confirms, on_return_raises=confirms)

    async def _open(self) -> "AbstractConnection":
        import aio_pika

        async with self._lock:
            if self._connection is None or self._connection.is_closed:
                settings = self._settings
                self._connection = await aio_pika.connect(
                    settings.url,
                    ssl_context=trusted(settings),
                    client_properties={"connection_name": self._name},
                    heartbeat=settings.heartbeat_seconds,
                    timeout=settings.connect_seconds,
                )
            return self._connection


def is_ours(error: BaseException) -> bool:
    """Whether this ends our own task. A connection that goes cancels whoever waits for its answers: that
    is an outage, and must end nobody."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return not isinstance(error, Exception)


def trusted(settings: RabbitSettings) -> ssl.SSLContext | None:
    """Whose certificates are believed, where the address asks for TLS. Raises BadInput."""
    return trusting(settings.ca_file) if settings.url.startswith("amqps:") else None


async def _quietly(connection: "AbstractConnection") -> None:
    try:
        async with asyncio.timeout(2):
            await connection.close()
    except Exception as error:
        _log.debug("a connection did not close in time", error=error)


def unavailable(
    settings: RabbitSettings, error: BaseException, topic: str | None = None
) -> BrokerUnavailable:
    """The plain cause, without anything that the server may have echoed of a password."""
    what = type(error).__name__
    about = "" if topic is None else f" for {topic}"
    return BrokerUnavailable(
        f"RabbitMQ at {settings.shown} did not answer{about}: {what}",
        where="--broker",
        next_step=_step(error, settings),
    )


def _step(error: BaseException, settings: RabbitSettings) -> str:
    text, what = str(error), type(error).__name__
    if "NOT_FOUND" in text or what in ("PublishError", "ChannelNotFoundEntity"):
        return "run `nerve provision app.py --broker ...` to make what is missing"
    if "ACCESS_REFUSED" in text or what in ("ProbableAuthenticationError", "ChannelAccessRefused"):
        return (
            f"{settings.user} was refused: `nerve provision app.py --broker ... --check` names the"
            " rights to ask for"
        )
    if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in text:
        return (
            "its certificate is signed by nobody known here: name its authority with ?ca_file=FILE"
        )
    return "it is tried again by itself; `nerve doctor` says what can be reached"


def backoff() -> Backoff:
    """Between two attempts to reach a server that is away."""
    return Backoff(first_seconds=0.1, most_seconds=2.0)
