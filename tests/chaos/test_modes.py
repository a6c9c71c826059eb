"""The same work, with every hint dropped at the production intervals, and with every Run rebuilt."""

from pathlib import Path

import pytest

from chaos.matrix import MODES, Campaign
from chaos.points import ONE, TWO
from support.cluster import Forge
from support.cluster_world import MIX

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(200)]

CHANGED = ("hints off", "replay always")


@pytest.mark.law(3)
@pytest.mark.report("U69")
@pytest.mark.parametrize("mode", CHANGED)
@pytest.mark.parametrize("arrangement", [TWO, ONE])
async def test_all_kinds_of_work_end(
    hosts: Forge, tmp_path: Path, mode: str, arrangement: str
) -> None:
    async with Campaign.open(hosts, tmp_path, arrangement, environment=MODES[mode]) as campaign:
        await campaign.submit([*MIX, "absent", "forbidden", "thinking", "talk"], mode)
        turns = await campaign.submit(["cancelled", "plain", "plain"], mode)
        audit = await campaign.finish(60)
        assert audit.violations == []
        assert audit.turns == len(MIX) + 4 + len(turns)
        assert (audit.unknown_entered, audit.unknown_between) == (0, 0)


@pytest.mark.law(3)
@pytest.mark.parametrize(("mode", "kills"), [("hints off", 8), ("replay always", 25)])
async def test_all_kinds_of_work_end_in_spite_of_kills(
    hosts: Forge, tmp_path: Path, mode: str, kills: int
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO, environment=MODES[mode]) as campaign:
        for _ in range(kills):
            await campaign.kill_at_random()
        audit = await campaign.finish(90)
        assert audit.violations == []
