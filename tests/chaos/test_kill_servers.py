"""The kill matrix where both ledgers are PostgreSQL databases and a real broker stands between the hosts."""

import asyncio
import os
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chaos.matrix import Campaign
from chaos.points import SERVERS, cases
from nerve.protocol import topics
from support.cluster import Forge
from support.cluster_place import Servers
from support.rabbit import virtual_host
from support.rocketmq import space
from support.servers.postgres import database

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.external,
    pytest.mark.timeout(1200),
]

SEED = 20_261_201
SAMPLE = 8
RANDOM_KILLS = 10


def wanted(most: int) -> int | None:
    """`CHAOS_EVERYTHING=1` takes all there is."""
    return None if os.environ.get("CHAOS_EVERYTHING") else most


@pytest.fixture(params=["rabbitmq", "rocketmq"])
async def servers(request: pytest.FixtureRequest) -> AsyncGenerator[Servers]:
    async with AsyncExitStack() as stack:
        brain = await stack.enter_async_context(database())
        hands = await stack.enter_async_context(database())
        if request.param == "rabbitmq":
            broker = f"{await stack.enter_async_context(virtual_host())}?create=true"
        else:
            broker = await _rocketmq(brain)
        yield Servers(brain=brain, hands=hands, broker=broker)


async def _rocketmq(brain: str) -> str:
    """Topics of a route, and of the Brain whose ledger names the last one."""
    from nerve.brain import PostgresBackend

    where = await space()
    async with await PostgresBackend.open(brain) as backend:
        cell = backend.ledger.identity.id
    for topic in (
        topics.commands("local", "hands"),
        topics.controls("local", "hands"),
        topics.updates("local", cell),
    ):
        await where.make(topic)
    return f"rocketmq://{where.settings.endpoint}?prefix={where.settings.prefix}"


async def check(campaign: Campaign) -> None:
    audit = await campaign.finish(120)
    assert audit.violations == []
    assert campaign.result.missed == [], "fault points that were not reached"
    assert audit.completed + audit.cancelled == audit.turns


@pytest.mark.law(1)
@pytest.mark.rule(13)
@pytest.mark.rule(16)
@pytest.mark.report("U10")
@pytest.mark.capability("D16.1")
@pytest.mark.storm
async def test_fault_points_on_servers(hosts: Forge, tmp_path: Path, servers: Servers) -> None:
    every = list(cases(SERVERS))
    most = wanted(SAMPLE)
    chosen = every if most is None else random.Random(SEED).sample(every, most)
    async with Campaign.open(hosts, tmp_path, SERVERS, seed=SEED, servers=servers) as campaign:
        for case in chosen:
            await campaign.kill_at(case)
        await check(campaign)


@pytest.mark.law(1)
@pytest.mark.report("U21")
@pytest.mark.storm
async def test_kills_at_random_times_on_servers(
    hosts: Forge, tmp_path: Path, servers: Servers
) -> None:
    async with Campaign.open(hosts, tmp_path, SERVERS, seed=SEED + 1, servers=servers) as campaign:
        for _ in range(100 if wanted(RANDOM_KILLS) is None else RANDOM_KILLS):
            await campaign.kill_at_random()
            await asyncio.sleep(0)
        await check(campaign)
