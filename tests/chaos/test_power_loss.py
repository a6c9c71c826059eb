"""What was acknowledged was flushed: ledgers cut back to their flushed bytes still hold it."""

import shutil
from pathlib import Path

import pytest

from chaos.power import cut_at, cut_everywhere, read, recorded

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

CUTS = 20


needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="the shim needs a C compiler"
)


@pytest.mark.law(1)
@needs_compiler
async def test_every_acknowledged_request_survives_a_power_cut_at_any_moment(
    tmp_path: Path,
) -> None:
    power = await cut_everywhere(tmp_path, cuts=CUTS, seed=7)
    assert power.lost == []
    assert power.cuts == CUTS
    assert power.acknowledged > CUTS
    assert power.entered > CUTS


@needs_compiler
async def test_the_cuts_would_show_a_host_that_does_not_flush(tmp_path: Path) -> None:
    log = await recorded(tmp_path)
    assert log is not None
    lazy = [event for event in read(log) if event.kind != "F" or "brain" not in event.path.name]
    power = await cut_at(tmp_path, lazy, cuts=CUTS, seed=7)
    assert any("brain.db" in each for each in power.lost)
