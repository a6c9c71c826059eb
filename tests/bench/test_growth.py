"""The growth bench tells a host that slows down from one that does not."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.growth import GrowthPlan, measure
from bench.peer import Acknowledged


class Slowing:
    """A peer in this process whose Threads cost more with every Turn, by `weight` loops each."""

    def __init__(self, weight: int) -> None:
        self._weight = weight
        self._turns = 0
        self.parked = 0

    def settings(self) -> Mapping[str, str]:
        return {}

    def prepare(self) -> None:
        return None

    def procs(self) -> Mapping[str, Sequence[str]]:
        return {}

    async def connect(self) -> None:
        return None

    async def turn(self, turn: str, acknowledged: Acknowledged) -> str:
        acknowledged(turn)
        await asyncio.sleep(0)
        return f"final {turn} 200"

    async def turn_in(self, session: str, turn: str) -> str:
        self._turns += 1
        for _ in range(20_000 + self._turns * self._weight):
            pass
        return turn

    async def park(self, turn: str) -> None:
        self.parked += 1

    def store_bytes(self) -> int:
        return self._turns * 100

    async def close(self) -> None:
        return None


def plan(directory: Path) -> GrowthPlan:
    return GrowthPlan(
        directory=directory,
        turns=120,
        window=20,
        waiting=30,
        latency_turns=5,
        quiet_s=0.01,
        warm_s=0.01,
    )


async def test_a_thread_that_grows_slower_is_seen(tmp_path: Path) -> None:
    row = await measure(Slowing(weight=2_000), plan(tmp_path))
    assert row["thread"]["ratio"]["p50_ms"] > 1.5
    assert row["thread"]["ratio"]["store_turn"] == 1.0


async def test_every_waiting_turn_is_submitted_once(tmp_path: Path) -> None:
    peer = Slowing(weight=0)
    row = await measure(peer, plan(tmp_path))
    assert peer.parked == 30
    assert row["waiting"]["turns"] == 30
    assert row["thread"]["cold_ms"] is None
