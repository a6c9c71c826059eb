"""Warm frames: bounded in number and bytes, and never older than what the claim saw."""

from pathlib import Path

import pytest

from nerve.brain.harness import Definition, Frame
from nerve.brain.ledger.claim import Claimed
from nerve.brain.schedule import frames
from nerve.brain.schedule.frames import Frames
from nerve.brain.state.checkpoint import GENESIS
from nerve.protocol.errors import Damaged
from support.item_ledger import item_ledger

DEFINITION = Definition(agent="a", version="1", harness="h", state_version="1")


def claimed(thread: str, *, position: int = 0, digest: str = GENESIS) -> Claimed:
    return Claimed(
        thread=thread,
        session="n/s",
        definition="a/1/h/1",
        token=1,
        position=position,
        digest=digest,
        turn="t",
        first=True,
        run=1,
        input="{}",
        iterations=0,
        calls=0,
        said=0,
        open_count=0,
        settle=None,
        failure=None,
        lost_step=None,
        retry_policy=None,
        retry_count=0,
        unapplied=(),
        claimed_at=1,
    )


def frame() -> Frame:
    return Frame(definition=DEFINITION, position=1, entries=["x"], state=None)


class Cold(Frames):
    """Says which frames had to be read from the ledger."""

    async def _restore(self, claimed: Claimed) -> Frame:
        raise Damaged(f"{claimed.thread} is cold")


async def warm(kept: Frames, thread: str) -> bool:
    try:
        await kept.load(claimed(thread, position=1, digest="d"))
    except Damaged:
        return False
    return True


@pytest.fixture
async def kept(tmp_path: Path) -> Cold:
    async with item_ledger(tmp_path / "t.db") as ledger:
        return Cold(ledger, keep=3)


async def test_the_least_recently_used_goes_first(kept: Cold) -> None:
    for name in "abc":
        kept.keep(name, "d", frame(), added=1)
    assert await warm(kept, "a")
    kept.keep("a", "d", frame(), added=1)
    kept.keep("e", "d", frame(), added=1)
    assert [name for name in "abce" if await warm(kept, name)] == ["a", "c", "e"]


async def test_bytes_are_bounded_and_one_may_be_longer_than_all(
    kept: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "WARM_BYTES_MAX", 100)
    kept.keep("a", "d", frame(), added=60)
    kept.keep("b", "d", frame(), added=60)
    assert not await warm(kept, "a")
    kept.keep("c", "d", frame(), added=1000)
    assert await warm(kept, "c")
    kept.keep("c", "d", frame(), added=1)
    kept.keep("e", "d", frame(), added=1)
    assert not await warm(kept, "c")
    assert await warm(kept, "e")


async def test_what_another_host_moved_on_is_not_used(kept: Cold) -> None:
    kept.keep("a", "old", frame(), added=1)
    assert not await warm(kept, "a")


async def test_a_host_that_keeps_nothing_restores_every_time(tmp_path: Path) -> None:
    async with item_ledger(tmp_path / "t.db") as ledger:
        nothing = Cold(ledger, keep=0)
        nothing.keep("a", "d", frame(), added=1)
        assert not await warm(nothing, "a")


async def test_a_new_thread_begins_empty_and_a_discarded_one_does_not(kept: Cold) -> None:
    assert (await kept.load(claimed("new"))).entries == []
    with pytest.raises(Damaged):
        await kept.load(claimed("discarded", position=0, digest="sha256:not-the-beginning"))
