"""Ledgers under test: the same suite for each."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from nerve.brain import DurableRuntime
from nerve.brain.handles import Session
from nerve.brain.ledger.definitions import Offer, offer
from nerve.brain.ledger.sessions import OpenSession, open_session
from nerve.common import faults
from nerve.common.clock import VirtualClock
from support.brain_cell import KEY, Cell, brain_cell, function, hello
from support.brain_desk import DEFINITION, ID, Desk, Desks

LEDGERS = ["sqlite", pytest.param("postgres", marks=pytest.mark.external)]


@pytest.fixture(params=LEDGERS)
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Cell, None]:
    """A Brain ledger in real time."""
    async with brain_cell(tmp_path / "state", kind=request.param) as made:
        yield made


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=LEDGERS)
async def still(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> AsyncGenerator[Cell, None]:
    """A Brain ledger in virtual time."""
    async with brain_cell(tmp_path / "state", clock, kind=request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    faults.disarm()


@pytest.fixture
async def desks(still: Cell) -> AsyncGenerator[Desks, None]:
    one, other = Desk(await still.backend()), Desk(await still.backend())
    await one.ledger.commit(offer, Offer(definition=DEFINITION, bindings={}, now=1))
    await one.ledger.commit(
        open_session, OpenSession(key=KEY, agent="agent", version=None, now=one.now())
    )
    await one.open(ID)
    await other.open(ID)
    yield one, other
    await one.hosts.close()
    await other.hosts.close()


@pytest.fixture
async def session(still: Cell) -> Session:
    return (await still.runtime()).get_session(KEY)


@pytest.fixture
async def pair(cell: Cell) -> tuple[DurableRuntime, DurableRuntime]:
    """Two processes that admit; a third one that ran before has offered the agent."""
    runner = await cell.runtime(function(hello))
    await runner.close()
    return await cell.runtime(), await cell.runtime()
