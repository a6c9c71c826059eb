"""Slow duties: forget what no command can name any more, and count what there is for the metrics."""

from typing import final

from nerve.common.clock import Clock
from nerve.common.outbox import depth
from nerve.common.sql import Ledger
from nerve.hands.ledger.answers import open_counts
from nerve.hands.ledger.settle import anything_to_forget, forget
from nerve.hands.metrics import HandsMetrics
from nerve.protocol.execution import ExecutionState


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

    def __init__(self, ledger: Ledger, metrics: HandsMetrics, *, clock: Clock) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._clock = clock

    async def run_once(self) -> bool:
        route = self._metrics.route
        found = await self._ledger.read(open_counts)
        for state in ExecutionState:
            if state.is_settled:
                continue
            self._metrics.held.set(found.get(state, 0), route, state)
        rows, oldest = await self._ledger.read(depth)
        age = 0.0 if oldest is None else (self._clock.now_ms() - oldest) / 1000
        self._metrics.outbox.set(rows, route)
        self._metrics.outbox_age.set(max(0.0, age), route)
        return False
