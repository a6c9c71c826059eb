"""Ledgers under test: SQLite today; another one adds a way to open a cell."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.clock import VirtualClock
from support.brain_cell import Cell, brain_cell

LEDGERS = ["sqlite"]


@pytest.fixture(params=LEDGERS)
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Cell, None]:
    """A Brain ledger in real time."""
    async with brain_cell(tmp_path / "state") as made:
        yield made


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=LEDGERS)
async def still(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> AsyncGenerator[Cell, None]:
    """A Brain ledger in virtual time."""
    async with brain_cell(tmp_path / "state", clock) as made:
        yield made


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    faults.disarm()
