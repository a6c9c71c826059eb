"""Slow duties: forget what no command can name any more, and count what there is for the metrics."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import final

from nerve.common.clock import Clock
from nerve.common.outbox import depth
from nerve.common.sql import Ledger
from nerve.hands.ledger.answers import open_counts
from nerve.hands.ledger.pool import PoolCensus, pool
from nerve.hands.ledger.settle import anything_to_forget, forget
from nerve.hands.metrics import HandsMetrics
from nerve.protocol.errors import BrokerUnavailable
from nerve.protocol.execution import ExecutionState

Queued = Callable[[], Awaitable[int]]
"""How many commands wait on the broker."""


@final
class Forgetting:
    """Deletes tombstones whose time has come."""

    name = "forgetting"
    interval_seconds = 60.0

    def __init__(self, ledger: Ledger, *, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    async def run_once(self) -> bool:
        now = self._clock.now_ms()
        if not await self._ledger.read(lambda tx: anything_to_forget(tx, now)):
            return False
        return await self._ledger.commit(forget, now)


@final
class Census:
    """Gauges that only the ledger can tell."""

    name = "census"
    interval_seconds = 15.0

    def __init__(
        self, ledger: Ledger, metrics: HandsMetrics, *, clock: Clock, queued: Queued | None = None
    ) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._clock = clock
        self._queued = queued

    async def run_once(self) -> bool:
        route = self._metrics.route
        found = await self._ledger.read(open_counts)
        for state in ExecutionState:
            if state.is_settled:
                continue
            self._metrics.held.set(found.get(state, 0), route, state)
        rows, oldest = await self._ledger.read(depth)
        self._metrics.outbox.set(rows, route)
        self._metrics.outbox_age.set(self._age(oldest), route)
        self._count_pool(await self._ledger.read(pool))
        if self._queued is not None:
            with suppress(BrokerUnavailable):
                self._metrics.pool_queued.set(await self._queued(), route)
        return False

    def _count_pool(self, found: PoolCensus) -> None:
        metrics, route = self._metrics, self._metrics.route
        metrics.pool_waiting.set(found.waiting, route)
        metrics.pool_waiting_oldest.set(self._age(found.waiting_since), route)
        metrics.pool_running.set(found.running, route)
        metrics.pool_running_oldest.set(self._age(found.running_since), route)
        metrics.pool_replicas.set(len(found.replicas), route)

    def _age(self, since: int | None) -> float:
        return 0.0 if since is None else max(0.0, (self._clock.now_ms() - since) / 1000)
