"""Where updates go: to a Brain in this process where one is bound, else over the broker."""

import asyncio
from collections.abc import Sequence
from typing import final

from nerve.common.broker.port import Broker
from nerve.protocol.envelope import bundles
from nerve.protocol.executor import UpdateSink
from nerve.protocol.topics import updates


@final
class Publisher:
    def __init__(self, deployment: str, broker: Broker | None) -> None:
        self._deployment = deployment
        self._broker = broker
        self._sinks: dict[str, UpdateSink] = {}
        self._bound = asyncio.Event()

    def bind(self, cell: str, sink: UpdateSink | None) -> None:
        """Updates for `cell` go to `sink` from now on, or no longer."""
        topic = updates(self._deployment, cell)
        if sink is None:
            self._sinks.pop(topic, None)
        else:
            self._sinks[topic] = sink
            self._bound.set()

    async def publish(self, destination: str, envelopes: Sequence[bytes]) -> None:
        """Return after the receiver's commit or the broker's confirm."""
        sink = self._sinks.get(destination)
        while sink is None and self._broker is None:
            # Nobody can take it yet: a Brain of this process has still to open its executor.
            self._bound.clear()
            await self._bound.wait()
            sink = self._sinks.get(destination)
        if sink is not None:
            await sink(envelopes)
        elif self._broker is not None:
            await self._broker.publish(destination, list(bundles(envelopes)))
