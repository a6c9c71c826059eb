"""Measures the time from SIGKILL of a host to the first thing that another process does for its work."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from chaos.matrix import Campaign, seen
from chaos.points import FOUR, TWO
from support import effects
from support.cluster import Forge


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """Seconds, sorted."""

    role: str
    standby: bool
    seconds: tuple[float, ...]

    @property
    def p50(self) -> float:
        return self.seconds[len(self.seconds) // 2]

    @property
    def p99(self) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(len(self.seconds) * 0.99))]


async def measured(
    forge: Forge,
    place: Path,
    role: str,
    *,
    standby: bool,
    rounds: int,
    settings: Mapping[str, str],
) -> Moving:
    """Kill the owner of one Turn again and again, in a model call (brain) or a repeatable tool (hands)."""
    found: list[float] = []
    async with Campaign.open(
        forge, place, FOUR if standby else TWO, environment=settings
    ) as campaign:
        for _ in range(rounds):
            found.append(await _once(campaign, role, standby=standby))
        audit = await campaign.finish()
        assert audit.violations == []
    return Moving(role=role, standby=standby, seconds=tuple(sorted(found)))


async def _once(campaign: Campaign, role: str, *, standby: bool) -> float:
    await campaign.fill()
    world = campaign.probe.world
    file = world.asked if role == "brain" else world.effects
    kind = effects.ASKED if role == "brain" else effects.ENTERED
    turn = await campaign.probe.submit("thinking" if role == "brain" else "again_slow")

    def of_turn() -> list[effects.Mark]:
        return [
            mark
            for mark in effects.read(file)
            if mark.kind == kind and mark.subject.startswith(turn.id)
        ]

    async def begun() -> bool:
        return bool(of_turn())

    await seen(begun, "its work has begun")
    first = of_turn()[0]
    victim = next(node for node in campaign.cluster.nodes if node.pid == first.pid)
    await victim.kill()
    if not standby:
        campaign.cluster.start(role)

    async def moved() -> bool:
        return any(mark.pid != first.pid for mark in of_turn())

    await seen(moved, "somebody goes on")
    again = next(mark for mark in of_turn() if mark.pid != first.pid)
    assert victim.killed_at is not None
    await campaign.probe.until_ended([turn.id])
    return again.at - victim.killed_at
