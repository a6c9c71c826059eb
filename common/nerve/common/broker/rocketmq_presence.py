"""What a proxy must remember of a consumer: its settings, which live in the proxy's memory only.

They are told on a stream and told again at once after any loss of it: a proxy that was started anew, or
that heard no heartbeat for two minutes, answers every receive with an error until then.
"""

import asyncio
from collections.abc import Callable
from typing import Any, final

from nerve.common.broker.rocketmq_link import (
    VERSION,
    Declined,
    Link,
    once,
    pause,
    unavailable,
)
from nerve.common.logs import get_log
from nerve.protocol.errors import BrokerUnavailable

_log = get_log("nerve.common.rocketmq")

RECEIVE_MAX = 32


@final
class Presence:
    """One client id at one proxy: a Telemetry stream that is reopened for ever, and heartbeats."""

    def __init__(
        self,
        link: Link,
        address: str,
        client: str,
        *,
        topic: str,
        group: str,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`lost` is called whenever the proxy is not reached, or has forgotten us."""
        self._link = link
        self._address = address
        self._client = client
        self._topic = topic
        self._group = group
        self._lost = lost
        self._known = asyncio.Event()
        self._doubt = asyncio.Event()
        self.told = 0
        """How often the settings were accepted."""

    @property
    def known(self) -> bool:
        """Whether the proxy has our settings now."""
        return self._known.is_set()

    async def ready(self) -> None:
        """Wait until the proxy has our settings."""
        await self._known.wait()

    def doubt(self) -> None:
        """An answer showed that the proxy forgot us: tell it again, now."""
        self._known.clear()
        self._doubt.set()

    async def introduce(self) -> None:
        """Tell the settings once: what is wrong with the topic or the group is raised."""
        stream = self._stream()
        try:
            async with asyncio.timeout(self._link.settings.call_seconds):
                await self._tell(stream)
        finally:
            stream.cancel()

    async def keep(self) -> None:
        """Run until cancelled."""
        failures = 0
        while True:
            told = self.told
            try:
                await self._visit()
            except Exception as error:
                self._lost()
                _log.warning(
                    "RocketMQ does not know this consumer for the moment, it is told again",
                    topic=self._topic,
                    cause=f"rocketmq:{self._topic}",
                    error=unavailable(
                        self._link.settings,
                        error,
                        self._topic,
                        group=self._group,
                        address=self._address,
                    ),
                )
            finally:
                self._known.clear()
            failures = 1 if self.told > told else failures + 1
            await self._link.clock.sleep(pause(failures))

    async def _visit(self) -> None:
        """From the settings' arrival until they are lost, or in doubt."""
        self._doubt.clear()
        stream = self._stream()
        try:
            async with asyncio.timeout(self._link.settings.call_seconds):
                await self._tell(stream)
            self.told += 1
            self._known.set()
            async with asyncio.TaskGroup() as group:
                for work in (self._listen(stream), self._beat(), self._until_doubt()):
                    group.create_task(work)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            stream.cancel()

    def _stream(self) -> Any:
        metadata = self._link.metadata(self._client)
        return self._link.stub(self._address).Telemetry(metadata=metadata)

    async def _tell(self, stream: Any) -> None:
        await once(lambda: stream.write(self._settings()))
        while True:
            command = await self._read(stream)
            if command.WhichOneof("command") == "settings":
                name = self._link.stubs.name(command.status)
                if name not in ("OK", "CODE_UNSPECIFIED"):
                    raise Declined(name, command.status.message)
                return

    async def _listen(self, stream: Any) -> None:
        """Commands of the server, of which none concerns a consumer of this kind."""
        while True:
            command = await self._read(stream)
            if command.WhichOneof("command") == "reconnect_endpoints_command":
                raise ConnectionResetError("the server asks to connect again")

    async def _read(self, stream: Any) -> Any:
        command = await once(stream.read)
        if command == self._link.stubs.grpc.aio.EOF:
            # The stream's end says why: a group that does not exist, for instance.
            code, details = await stream.code(), await stream.details()
            raise Declined(str(getattr(code, "name", code)), str(details or ""))
        return command

    async def _beat(self) -> None:
        link = self._link
        service, definition = link.stubs.service, link.stubs.definition
        request = service.HeartbeatRequest(
            client_type=definition.SIMPLE_CONSUMER, group=link.resource(self._group)
        )
        while True:
            await link.clock.sleep(link.settings.heartbeat_seconds)
            answer = await link.call(self._address, self._client, "Heartbeat", request)
            name = link.stubs.name(answer.status)
            if name != "OK":
                raise Declined(name, answer.status.message)

    async def _until_doubt(self) -> None:
        await self._doubt.wait()
        raise BrokerUnavailable("the proxy has forgotten this consumer", where=self._topic)

    def _settings(self) -> Any:
        link = self._link
        definition = link.stubs.definition
        everything = definition.FilterExpression(type=definition.TAG, expression="*")
        settings = definition.Settings(
            client_type=definition.SIMPLE_CONSUMER,
            access_point=link.endpoints(),
            user_agent=definition.UA(
                language=definition.PYTHON, version=VERSION, platform="nerve", hostname=""
            ),
            subscription=definition.Subscription(
                group=link.resource(self._group),
                fifo=False,
                receive_batch_size=RECEIVE_MAX,
                subscriptions=[
                    definition.SubscriptionEntry(
                        topic=link.resource(self._topic), expression=everything
                    )
                ],
            ),
        )
        settings.request_timeout.FromMilliseconds(int(link.settings.call_seconds * 1000))
        settings.subscription.long_polling_timeout.FromMilliseconds(
            int(link.settings.poll_seconds * 1000)
        )
        return link.stubs.service.TelemetryCommand(settings=settings)
