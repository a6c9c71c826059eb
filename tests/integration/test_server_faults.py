"""Each server's container killed and frozen under load: nothing lost, nothing doubled, and it goes on.

Brain and Hands live in this process on two PostgreSQL of their own; the effects are lines of a file. These
tests need the containers of `make integration`, which tells where they are.
"""

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import final

import pytest

from nerve.brain import PostgresBackend, Turn
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.runtime import DurableRuntime
from nerve.common.settings import Settings
from nerve.deploy.host import Host, brain_host, hands_host
from nerve.protocol import Catalog, topics
from nerve.protocol.errors import NerveError, Timeout
from nerve.protocol.identity import SessionKey
from support.engine import docker
from support.rocketmq import a_space
from support.servers.postgres import make_database
from support.servers.rabbitmq import AMQP

pytestmark = [pytest.mark.external, pytest.mark.chaos, pytest.mark.timeout(400)]

TURNS = 40
FROZEN_SECONDS = 6.0
HANDS_URL = "NERVE_TEST_POSTGRES_HANDS_URL"

tools = Catalog(route="hands")
effects: list[Path] = []


@tools.tool
async def mark(key: str) -> str:
    """Leave a line."""
    with effects[-1].open("a", encoding="utf-8") as file:
        file.write(f"{key}\n")
    await asyncio.sleep(0.2)
    return key


SCRIPT = """\
- when: {user: "^mark (?P<key>\\\\S+)$", round: 1}
  calls: [{tool: mark, arguments: {key: $key}}]
- when: {round: 2}
  text: "marked $last"
"""


def containered(name: str) -> str:
    """The engine's id of a server of this run."""
    found = os.environ.get(f"NERVE_TEST_CONTAINER_{name.upper().replace('-', '_')}")
    if not found:
        pytest.skip("it stops containers of `make integration`, and this is no such run")
    return found


@final
class Pair:
    """A Brain and Hands on two servers."""

    def __init__(self, brain: Host, place: Path) -> None:
        assert brain.runtime is not None
        self.runtime: DurableRuntime = brain.runtime
        self.place = place

    async def submit(self, number: int) -> Turn:
        """What a client does: the same request again until it is answered."""
        key = f"k-{number}"
        while True:
            try:
                return await self.runtime.submit(
                    SessionKey("acme", key), key, f"mark {key}", agent="marker"
                )
            except NerveError:
                await asyncio.sleep(0.2)

    async def ended(self, turn: Turn) -> str:
        while True:
            try:
                return (await turn.result(5)).phase.value
            except Timeout:
                continue
            except NerveError:
                await asyncio.sleep(0.2)

    def marks(self) -> Counter[str]:
        path = effects[-1]
        return Counter(path.read_text(encoding="utf-8").split() if path.exists() else [])


async def rabbitmq(deployment: str, cell: str) -> str:
    """Its address; the queues of a deployment of its own are made by the hosts."""
    return f"{await asyncio.to_thread(AMQP.address)}?create=true"


async def rocketmq(deployment: str, cell: str) -> str:
    """Its address, with the topics that an operator makes."""
    where = await asyncio.to_thread(a_space)
    for topic in (
        topics.commands(deployment, "hands"),
        topics.controls(deployment, "hands"),
        topics.updates(deployment, cell),
    ):
        await where.make(topic)
    return f"rocketmq://{where.settings.endpoint}?prefix={where.settings.prefix}"


BROKERS = {"rabbitmq": rabbitmq, "rocketmq": rocketmq}


async def cell_of(url: str) -> str:
    """The id of the Brain ledger that is made there."""
    async with await PostgresBackend.open(url) as backend:
        return backend.ledger.identity.id


@asynccontextmanager
async def pair(broker: str, place: Path) -> AsyncGenerator[Pair]:
    effects.append(place / "effects")
    brain_url = await make_database(os.environ["NERVE_TEST_POSTGRES_URL"])
    hands_url = await make_database(os.environ[HANDS_URL])
    (place / "marker.yaml").write_text(SCRIPT, encoding="utf-8")
    model = ScriptedModel.from_file(place / "marker.yaml")
    agent = ReactAgent("marker", version="1", model=model, tools=tools)
    deployment = f"t{secrets.token_hex(4)}"
    quick = Settings(
        deployment=deployment,
        broker=await BROKERS[broker](deployment, await cell_of(brain_url)),
        heartbeat_seconds=1,
        grace_seconds=20,
        inquiry_silence_seconds=2,
        repeat_first_seconds=2,
        outbox_resend_seconds=2,
    )
    async with AsyncExitStack() as stack:
        for_hands, for_brain = (replace(quick, database=url) for url in (hands_url, brain_url))
        await stack.enter_async_context(hands_host(tools, place / "hands", settings=for_hands))
        brain = await stack.enter_async_context(
            brain_host([agent], place / "brain", settings=for_brain)
        )
        yield Pair(brain, place)


async def killed(container: str) -> None:
    await asyncio.to_thread(docker, "kill", "--signal", "KILL", container)
    await asyncio.to_thread(docker, "start", container)


async def frozen(container: str) -> None:
    await asyncio.to_thread(docker, "pause", container)
    await asyncio.sleep(FROZEN_SECONDS)
    await asyncio.to_thread(docker, "unpause", container)


async def restarted(container: str) -> None:
    await asyncio.to_thread(docker, "restart", "--time", "30", container)


FAULTS = {"killed": killed, "standing-still": frozen, "restarted": restarted}
CASES = [
    ("rabbitmq", "rabbitmq"),
    ("rabbitmq", "postgres-brain"),
    ("rabbitmq", "postgres-hands"),
    ("rocketmq", "rocketmq"),
]


@pytest.mark.rule(13)
@pytest.mark.capability("E2.2")
@pytest.mark.report("U35")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("broker", "victim"), CASES)
async def test_a_server_that_goes_away_under_load_costs_nothing(
    broker: str, victim: str, fault: str, tmp_path: Path
) -> None:
    container = containered(victim)
    async with pair(broker, tmp_path) as world:
        turns = [await world.submit(number) for number in range(TURNS // 2)]
        waits = [asyncio.create_task(world.ended(turn)) for turn in turns]
        await FAULTS[fault](container)
        turns = [await world.submit(number) for number in range(TURNS // 2, TURNS)]
        waits += [asyncio.create_task(world.ended(turn)) for turn in turns]
        ended = Counter(await asyncio.gather(*waits))
        assert {"COMPLETED": TURNS} == ended
        assert {f"k-{number}": 1 for number in range(TURNS)} == world.marks()
