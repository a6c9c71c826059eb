"""SIGKILL at every named fault point, and at random times: nothing acknowledged is lost, nothing is doubled."""

import random
from pathlib import Path

import pytest

from chaos.matrix import Campaign
from chaos.points import FOUR, MEMORY, ONE, TWO, Case, cases
from support.cluster import Forge
from support.probe import Audit

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]

SEED = 20_261_201
SAMPLE = 24


def check(campaign: Campaign, audit: Audit) -> None:
    """Nothing lost, doubled, asked twice or called UNKNOWN without cause, and every kill was made."""
    assert audit.violations == []
    assert campaign.result.missed == [], "fault points that were not reached"
    assert audit.completed + audit.cancelled == audit.turns


async def kill_all(campaign: Campaign, chosen: list[Case]) -> None:
    for case in chosen:
        await campaign.kill_at(case)
    check(campaign, await campaign.finish())


@pytest.mark.rule(13)
@pytest.mark.rule(16)
@pytest.mark.law(1)
@pytest.mark.report("U10")
@pytest.mark.parametrize("roles", [("brain",), ("hands",), ("client", "operator")], ids="+".join)
async def test_every_fault_point_between_two_processes(
    hosts: Forge, tmp_path: Path, roles: tuple[str, ...]
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO, seed=SEED) as campaign:
        await kill_all(campaign, [case for case in cases(TWO) if case.role in roles])


@pytest.mark.law(1)
@pytest.mark.parametrize("arrangement", [ONE, FOUR])
async def test_a_sample_of_the_points_in_the_other_arrangements(
    hosts: Forge, tmp_path: Path, arrangement: str
) -> None:
    chosen = random.Random(SEED).sample(list(cases(arrangement)), SAMPLE)
    async with Campaign.open(hosts, tmp_path, arrangement, seed=SEED) as campaign:
        await kill_all(campaign, chosen)


@pytest.mark.law(1)
async def test_every_point_of_the_broker_in_memory(hosts: Forge, tmp_path: Path) -> None:
    async with Campaign.open(hosts, tmp_path, MEMORY, seed=SEED) as campaign:
        await kill_all(campaign, list(cases(MEMORY)))


@pytest.mark.law(1)
@pytest.mark.report("U21")
@pytest.mark.parametrize(("arrangement", "kills"), [(TWO, 100), (ONE, 50), (FOUR, 50)])
async def test_kills_at_random_times(
    hosts: Forge, tmp_path: Path, arrangement: str, kills: int
) -> None:
    async with Campaign.open(hosts, tmp_path, arrangement, seed=SEED + kills) as campaign:
        for _ in range(kills):
            await campaign.kill_at_random()
        check(campaign, await campaign.finish())
