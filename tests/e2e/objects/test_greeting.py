"""A Brain and the Hands that are up prove to each other that they share one store, or it does not start."""

import asyncio
from pathlib import Path

import pytest

from nerve.common.settings import Settings
from nerve.protocol.errors import Refused
from support.large_world import FAST, KIB, LargeWorld, submit

pytestmark = pytest.mark.timeout(120)


def at(folder: Path) -> Settings:
    return Settings(**FAST, objects=f"file://{folder}")


@pytest.mark.capability("E7.2")
async def test_a_brain_that_shares_no_store_with_its_hands_is_refused_with_both_addresses(
    tmp_path: Path,
) -> None:
    world = LargeWorld(folder=tmp_path)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    async with world.hands(at(theirs)):
        with pytest.raises(Refused) as refused:
            async with world.brain(at(ours)):
                pass
        text = str(refused.value)
        assert f"ours is file://{ours}, theirs is file://{theirs}" in text
        assert "start both sides with one --objects" in text
        # The answer of that greeting is old news for the next start, which has the right one.
        async with world.brain(at(theirs)) as brain:
            assert brain.runtime is not None
            turn = await submit(brain.runtime, "both", 300 * KIB, 300 * KIB)
            assert (
                await turn.result(30)
            ).text == f"both came={300 * KIB} right=True back={300 * KIB}"


async def test_a_brain_starts_before_its_hands_and_waits_for_none(tmp_path: Path) -> None:
    world = LargeWorld(folder=tmp_path)
    async with asyncio.timeout(20), world.brain(at(tmp_path / "objects")) as brain:
        assert brain.runtime is not None
        turn = await submit(brain.runtime, "later", 300 * KIB, 1)
        async with world.hands(at(tmp_path / "objects")):
            assert (await turn.result(15)).text == f"later came={300 * KIB} right=True back=1"
