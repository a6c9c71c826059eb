"""How long work stands still after SIGKILL: beside a standby host, and with a restart."""

from pathlib import Path

import pytest

from chaos.moving import measured
from support.cluster import PRODUCTION, Forge

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(120)]

STANDBY_SECONDS = 0.5
RESTART_SECONDS = 1.0
ROUNDS = 8
SHARED_CORES = 2
"""Other tests run beside this one: its worst round may take so many times the limit. `make chaos` runs alone."""


@pytest.mark.parametrize("role", ["brain", "hands"])
async def test_a_standby_host_takes_over_within_half_a_second(
    hosts: Forge, tmp_path: Path, role: str
) -> None:
    found = await measured(hosts, tmp_path, role, standby=True, rounds=ROUNDS, settings=PRODUCTION)
    assert found.p50 <= STANDBY_SECONDS, found
    assert found.p99 <= STANDBY_SECONDS * SHARED_CORES, found


@pytest.mark.parametrize("role", ["brain", "hands"])
async def test_a_restarted_host_goes_on_within_a_second(
    hosts: Forge, tmp_path: Path, role: str
) -> None:
    found = await measured(hosts, tmp_path, role, standby=False, rounds=ROUNDS, settings=PRODUCTION)
    assert found.p50 <= RESTART_SECONDS, found
    assert found.p99 <= RESTART_SECONDS * SHARED_CORES, found
