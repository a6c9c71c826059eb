"""What waits for time or for a free slot waits in a ledger: the broker holds nothing for it."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from nerve.brain import DurableRuntime, LocalBackend
from nerve.brain.agents.context import Context
from nerve.brain.agents.function import FunctionAgent
from nerve.brain.state.recovery import RecoveryPolicy
from nerve.common.broker.rabbitmq import RabbitBroker
from nerve.common.broker.rabbitmq_address import RabbitSettings
from nerve.common.settings import Settings
from nerve.hands import WorkerRuntime
from nerve.protocol.content import Message
from nerve.protocol.identity import SessionKey
from support.hands_place import Bench
from support.rabbit import manage, virtual_host
from support.waiting import soon, until

pytestmark = [pytest.mark.external, pytest.mark.timeout(120)]

BEHIND = 20
PATIENT = Settings(inquiry_silence_seconds=600.0, repeat_first_seconds=600.0)
"""Nothing is asked or said again while the test looks."""


@asynccontextmanager
async def broker(url: str) -> AsyncGenerator[RabbitBroker]:
    made = RabbitBroker(RabbitSettings(url=url, create=True))
    try:
        yield made
    finally:
        await made.close()


async def queues(url: str) -> list[dict[str, Any]]:
    path = f"queues/{urlsplit(url).path[1:]}"
    found: list[dict[str, Any]] = await asyncio.to_thread(manage, "GET", path)
    return found


async def held(url: str) -> int:
    """What the broker keeps, delivered or not; the numbers are a few seconds old."""
    return sum(each.get("messages", 1) for each in await queues(url))


async def acknowledged(url: str) -> int:
    return sum(each.get("message_stats", {}).get("ack", 0) for each in await queues(url))


def admitted(folder: Path) -> int:
    """Executions that the Hands' own ledger knows."""
    with closing(sqlite3.connect(folder / "hands" / "hands-hands.db")) as ledger:
        return int(ledger.execute("select count(*) from execution").fetchone()[0])


@pytest.mark.report("U28", "U29")
@pytest.mark.capability("E2.1")
async def test_a_long_tool_what_stands_behind_it_and_a_backoff_hold_no_delivery(
    tmp_path: Path,
) -> None:
    bench = Bench()
    catalog = bench.catalog()
    policy = RecoveryPolicy(retries=3, first_seconds=3_600.0, most_seconds=3_600.0)

    async def call(ctx: Context, input: Message) -> str:
        return str(await ctx.call(input.text))

    async def fail(ctx: Context, input: Message) -> str:
        raise ConnectionError("down")

    agents = [
        FunctionAgent(call, "calling", version="1", tools=catalog),
        FunctionAgent(fail, "failing", version="1"),
    ]
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(virtual_host())
        theirs = await stack.enter_async_context(broker(url))
        hands = WorkerRuntime(tmp_path / "hands", catalog, broker=theirs, slots=1, settings=PATIENT)
        await stack.enter_async_context(hands)
        backend = await stack.enter_async_context(LocalBackend.open(tmp_path / "brain"))
        ours = await stack.enter_async_context(broker(url))
        runtime = DurableRuntime(
            backend, agents=agents, broker=ours, settings=PATIENT, policy=policy
        )
        await stack.enter_async_context(runtime)

        async def submit(name: str, agent: str, content: str) -> Any:
            session = await runtime.session(SessionKey("acme", name), agent=agent)
            return await session.submit("r", content)

        turns = [await submit("long", "calling", "hold")]
        await until(lambda: bench.effects, "the only slot is taken")
        turns += [await submit(f"s-{n}", "calling", "act") for n in range(BEHIND)]
        late = await submit("late", "failing", "x")
        async with asyncio.timeout(60):
            while (await late.status()).reasons != ["BACKOFF"]:
                await asyncio.sleep(0.01)
            # Each command was taken, several perhaps in one message, and all that was taken was acknowledged.
            while admitted(tmp_path) < 1 + BEHIND or await acknowledged(url) < 2 or await held(url):
                await asyncio.sleep(0.1)
        assert len(bench.effects) == 1, "all the others wait"
        assert await held(url) == 0
        before = await acknowledged(url)
        bench.gate.set()
        assert {(await soon(turn.result())).text for turn in turns} == {"done"}
        assert len({*bench.effects}) == len(bench.effects) == 1 + BEHIND
        assert (await late.status()).reasons == ["BACKOFF"]
        async with asyncio.timeout(60):
            while await held(url) or await acknowledged(url) < before + 1:
                await asyncio.sleep(0.1)
        await late.cancel("c")
