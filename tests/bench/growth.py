"""What long Threads and many waiting Turns cost one host; run as `python -m bench.growth`.

The peer needs `Threaded`: another Turn in a Thread, and a Turn that waits for a tool nobody hosts.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from bench import shim
from bench.drive import Driver, Roles, quantiles, run
from bench.peer import Threaded

SENDERS = 256
RESTART_LIMIT_S = 60.0
CALM_SHARE = 0.02
CALM_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """Windows of `window` Turns, the early one from `early` on, the late one up to `turns`."""

    directory: Path
    turns: int = 2_000
    early: int = 10
    window: int = 50
    waiting: int = 100_000
    latency_turns: int = 200
    quiet_s: float = 10.0
    warm_s: float = 3.0

    @property
    def effect_file(self) -> Path:
        return self.directory / "effects.txt"

    def quick(self) -> "GrowthPlan":
        return replace(self, turns=200, waiting=1_000, latency_turns=50, quiet_s=3.0)

    def dump(self) -> str:
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, default=str)

    @classmethod
    def parse(cls, text: str) -> "GrowthPlan":
        values: dict[str, Any] = json.loads(text)
        return cls(directory=Path(values.pop("directory")), **values)


def fresh_id() -> str:
    return uuid.uuid4().hex[: shim.MARK_ID]


class Growth:
    """One host under the two loads."""

    def __init__(self, peer: Threaded, roles: Roles, plan: GrowthPlan) -> None:
        self._peer = peer
        self._roles = roles
        self._plan = plan
        self._driver = Driver(peer, roles)

    async def run(self) -> dict[str, Any]:
        row = {"thread": await self._thread(), "waiting": await self._waiting()}
        return row | {"settings": dict(self._peer.settings())}

    async def _thread(self) -> dict[str, Any]:
        session, window, early = f"long-{fresh_id()}", self._plan.window, self._plan.early
        middle = self._plan.turns - early - 2 * window
        await self._in_thread(session, early)
        first = await self._in_thread(session, window)
        await self._in_thread(session, middle)
        last = await self._in_thread(session, window)
        ratios = {
            name: round(last[name] / first[name], 3)
            for name in ("p50_ms", "p95_ms", "cpu_ms_turn_all", "written_turn", "store_turn")
            if first[name]
        }
        return {
            "turns": self._plan.turns,
            "first": first,
            "last": last,
            "ratio": ratios,
            "cold_ms": await self._cold(session),
        }

    async def _in_thread(self, session: str, count: int) -> dict[str, Any]:
        return await self._measured(count, lambda: self._peer.turn_in(session, fresh_id()))

    async def _alone(self, count: int) -> dict[str, Any]:
        return await self._measured(count, lambda: self._peer.turn(fresh_id(), lambda _: None))

    async def _measured(self, count: int, job: Callable[[], Awaitable[str]]) -> dict[str, Any]:
        took = list[float]()
        before = self._driver.snapshot()
        for _ in range(count):
            started = time.perf_counter()
            await job()
            took.append(time.perf_counter() - started)
        return {**quantiles(took), **before.until(self._driver.snapshot(), count)}

    async def _cold(self, session: str) -> dict[str, float] | None:
        """The Brain stopped and started again: the long Thread's next Turn beside a new one's.

        Both include the start of the process; their difference is the restore.
        """
        if "brain" not in self._roles.pids():
            return None
        took = dict[str, float]()
        for name, where in (("new_ms", f"new-{fresh_id()}"), ("long_ms", session)):
            self._roles.restart("brain")
            started = time.perf_counter()
            await asyncio.wait_for(self._peer.turn_in(where, fresh_id()), RESTART_LIMIT_S)
            took[name] = round((time.perf_counter() - started) * 1e3, 1)
        return took

    async def _waiting(self) -> dict[str, Any]:
        # A host that has worked: what load leaves in caches is not what waiting costs.
        await self._driver.outstanding(SENDERS, self._plan.warm_s)
        await self._alone(self._plan.latency_turns)
        without, memory = await self._alone(self._plan.latency_turns), self._driver.memory()
        parked = await self._park(self._plan.waiting)
        calm_s = await self._calm()
        quiet = await self._driver.quiet(self._plan.quiet_s)
        beside, later = await self._alone(self._plan.latency_turns), self._driver.memory()
        more = sum(later[role] - memory[role] for role in memory if role != "driver")
        return {
            "turns": self._plan.waiting,
            "parked_s": parked,
            "calm_after_s": calm_s,
            "without": without,
            "beside": beside,
            "ratio": round(beside["p50_ms"] / without["p50_ms"], 3),
            "more_mib": round(more if len(memory) > 1 else later["driver"] - memory["driver"], 1),
            "mib": {role: [memory[role], later[role]] for role in memory},
            "quiet": quiet,
        }

    async def _park(self, count: int) -> float:
        """Turns a second that were accepted."""
        numbers: Iterator[int] = iter(range(count))
        started = time.perf_counter()

        async def sender() -> None:
            for _ in numbers:
                await self._peer.park(fresh_id())

        await asyncio.gather(*(sender() for _ in range(SENDERS)))
        return round(count / (time.perf_counter() - started), 1)

    async def _calm(self) -> float:
        """Until the host has carried every parked Turn to its wait."""
        started = time.perf_counter()
        while (await self._driver.quiet(1.0))["cpu_share"] > CALM_SHARE:
            if time.perf_counter() - started > CALM_LIMIT_S:
                raise TimeoutError(f"still busy {CALM_LIMIT_S:.0f} s after the last parked Turn")
        return round(time.perf_counter() - started, 1)


async def measure(peer: Threaded, plan: GrowthPlan) -> dict[str, Any]:
    peer.prepare()
    roles = Roles(peer)
    try:
        await peer.connect()
        row = await Growth(peer, roles, plan).run()
        await peer.close()
    finally:
        roles.stop()
    return row


if __name__ == "__main__":
    asked = GrowthPlan.parse(sys.argv[2])
    module = import_module(f"bench.peers.{sys.argv[1]}_peer")
    run(lambda: measure(module.Peer(asked.directory), asked))
