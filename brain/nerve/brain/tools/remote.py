"""`RemoteExecutor`: one Hands pool behind a broker, seen from a Brain."""

from collections.abc import Sequence

from nerve.common import faults
from nerve.common.broker.port import Broker
from nerve.protocol import topics
from nerve.protocol.envelope import bundles
from nerve.protocol.executor import ExecutorCapabilities, UpdateSink

faults.register("brain", ["brain.remote.before_publish", "brain.remote.after_publish"])


class RemoteExecutor:
    """Publishes commands and controls of one route. Updates come through the cell's own topic,
    which the runtime consumes once for all routes of a broker."""

    def __init__(self, broker: Broker, *, deployment: str, route: str) -> None:
        self.broker = broker
        self.deployment = deployment
        self.route = route
        self._commands = topics.commands(deployment, route)
        self._controls = topics.controls(deployment, route)

    async def open(self, cell: str, sink: UpdateSink) -> None:
        await self.broker.open()

    async def start(self, envelopes: Sequence[bytes]) -> None:
        await self._publish(self._commands, envelopes)

    async def control(self, envelopes: Sequence[bytes]) -> None:
        await self._publish(self._controls, envelopes)

    def capabilities(self) -> ExecutorCapabilities:
        return ExecutorCapabilities(remote=True, routes=(self.route,))

    async def close(self) -> None:
        """The broker is closed by whoever made it."""

    async def _publish(self, topic: str, envelopes: Sequence[bytes]) -> None:
        await faults.apoint("brain.remote.before_publish")
        await self.broker.publish(topic, list(bundles(envelopes)))
        await faults.apoint("brain.remote.after_publish")
