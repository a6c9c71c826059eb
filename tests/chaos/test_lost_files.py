"""Queues wiped, ledgers lost, restored, replaced, copied and moved: nothing runs twice, nothing waits for ever."""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from chaos.matrix import Campaign, seen
from chaos.points import TWO
from nerve.brain.ledger.backend import LocalBackend
from nerve.common.clock import SystemClock
from nerve.common.place import Adoption, StateDirectory, adopt
from nerve.common.settings import load
from nerve.protocol.errors import NerveError, WrongLedger
from support import effects
from support.cluster import Forge
from support.cluster_world import MIX
from support.effects import Effects
from support.probe import Probe

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

STAGES = (
    ("brain", "brain.advance.after_commit"),
    ("brain", "common.outbox.before_publish"),
    ("brain", "common.broker.sqlite.before_publish_commit"),
    ("brain", "common.broker.sqlite.after_publish_commit"),
    ("brain", "common.outbox.before_forget"),
    ("hands", "common.broker.sqlite.before_claim_commit"),
    ("hands", "common.broker.sqlite.after_claim_commit"),
    ("hands", "hands.intake.before_admit"),
    ("hands", "hands.intake.admitted"),
    ("hands", "common.inbox.after_ack"),
    ("hands", "hands.engine.before_tool"),
    ("hands", "hands.engine.before_finish"),
    ("hands", "hands.finish.after_commit"),
    ("hands", "common.outbox.after_publish"),
    ("brain", "brain.intake.received"),
    ("brain", "brain.intake.committed"),
    ("brain", "common.broker.sqlite.before_ack_commit"),
)
"""Where a Turn stands still while the queues are wiped."""


def wipe(file: Path) -> None:
    for each in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        each.unlink(missing_ok=True)


def copy(file: Path, to: Path) -> None:
    """A consistent copy, as a backup makes one."""
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def effects_of(campaign: Campaign) -> Effects:
    return Effects.read(campaign.probe.world.effects)


@pytest.mark.rule(13)
@pytest.mark.law(1)
async def test_queues_wiped_at_every_stage_of_a_turn_delay_it_and_no_more(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        missed: list[str] = []
        for role, point in STAGES:
            (old,) = campaign.cluster.of(role)
            await old.terminate()
            frozen = campaign.cluster.start(role, faults=f"{point}=stop@1")
            await frozen.stopped_or_ready()
            # A host that stops inside a transaction lets nobody write: submitting ends after its thaw.
            kinds, name = ["plain", "many", "slow"], f"wiped at {role} {point}"
            submitting = asyncio.create_task(campaign.submit(kinds, name))
            if not await frozen.stopped(5):
                missed.append(f"{role} {point}")
            wipe(campaign.cluster.state / "broker.db")
            frozen.thaw()
            await submitting
        assert missed == []
        audit = await campaign.finish()
        assert audit.violations == []
        assert audit.completed == audit.turns == 3 * len(STAGES)
        assert (audit.unknown_entered, audit.unknown_between) == (0, 0)


@pytest.mark.rule(13)
async def test_queues_wiped_again_and_again_under_load(hosts: Forge, tmp_path: Path) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        for number in range(15):
            await campaign.submit(MIX[number % 5 :], f"wipe {number}")
            wipe(campaign.cluster.state / "broker.db")
        audit = await campaign.finish(60)
        assert audit.violations == []
        assert (audit.unknown_entered, audit.unknown_between) == (0, 0)


async def lose_hands(campaign: Campaign) -> tuple[str, Path]:
    """A tool has run and its result is in the Hands ledger only, of which there is an older copy."""
    ledger = campaign.cluster.state / "hands-hands.db"
    await campaign.probe.until_ended(await campaign.submit(["plain"], "before"))
    (hands,) = campaign.cluster.of("hands")
    await hands.terminate()
    older = campaign.cluster.place / "older.db"
    copy(ledger, older)
    hands = campaign.cluster.start("hands", faults="hands.finish.before_commit=kill@2")
    await hands.ready()
    # The Brain has heard from this ledger since the copy was made.
    await campaign.probe.until_ended(await campaign.submit(["plain"], "after"))
    (turn,) = await campaign.submit(["slow"], "lost")
    await hands.ended()
    assert campaign.cluster.of("hands") == []
    return turn, older


async def ends_unknown_once(campaign: Campaign, turn: str) -> None:
    await campaign.fill()

    async def unknown() -> bool:
        _, why = await campaign.probe.why(turn)
        return "UNKNOWN" in why

    await seen(unknown, "its outcome is UNKNOWN", 30)
    others = await campaign.submit(["plain", "many"], "others go on")
    await campaign.probe.until_ended(others)
    assert await campaign.probe.settle(15) == []
    marks = [each for each in effects.read(campaign.probe.world.effects) if turn in each.subject]
    assert [mark.kind for mark in marks] == [effects.ENTERED, effects.EFFECT]
    audit = await campaign.probe.audit()
    assert audit.violations == []
    assert list(campaign.probe.unknown) == [f"{turn}.x1"], "only what may have run is UNKNOWN"


@pytest.mark.rule(12)
async def test_a_lost_hands_ledger_repeats_no_tool(hosts: Forge, tmp_path: Path) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        turn, _ = await lose_hands(campaign)
        wipe(campaign.cluster.state / "hands-hands.db")
        refused = campaign.cluster.start("hands")
        assert await refused.ended() != 0
        assert "the marker says it was made here" in refused.text()
        StateDirectory.open(campaign.cluster.state, create=False).forget("hands-hands")
        await ends_unknown_once(campaign, turn)


@pytest.mark.rule(12)
async def test_a_hands_ledger_that_is_lost_with_its_first_command_repeats_no_tool(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        for node in campaign.cluster.of("hands"):
            await node.kill()
        hands = campaign.cluster.start("hands", faults="hands.finish.before_commit=kill@1")
        await hands.ready()
        (turn,) = await campaign.submit(["slow"], "first")
        await hands.ended()
        wipe(campaign.cluster.state / "hands-hands.db")
        StateDirectory.open(campaign.cluster.state, create=False).forget("hands-hands")
        await ends_unknown_once(campaign, turn)


@pytest.mark.rule(12)
async def test_a_hands_ledger_restored_to_an_earlier_copy_repeats_no_tool(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        turn, older = await lose_hands(campaign)
        ledger = campaign.cluster.state / "hands-hands.db"
        wipe(ledger)
        copy(older, ledger)
        await ends_unknown_once(campaign, turn)


@pytest.mark.rule(12)
async def test_a_hands_ledger_replaced_by_that_of_another_repeats_no_tool(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path / "other", TWO) as other:
        await other.probe.until_ended(await other.submit(["plain", "many"], "other"))
        for node in other.cluster.of("hands"):
            await node.terminate()
        stranger = tmp_path / "stranger.db"
        copy(other.cluster.state / "hands-hands.db", stranger)
    async with Campaign.open(hosts, tmp_path / "own", TWO) as campaign:
        turn, _ = await lose_hands(campaign)
        ledger = campaign.cluster.state / "hands-hands.db"
        wipe(ledger)
        copy(stranger, ledger)
        await ends_unknown_once(campaign, turn)


@pytest.mark.rule(25)
async def test_a_brain_ledger_removed_under_its_hosts_stops_admission_and_comes_back_whole(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        await campaign.probe.until_ended(await campaign.submit(["plain"], "before"))
        state, away = campaign.cluster.state, tmp_path / "away"
        away.mkdir()
        for file in state.glob("brain.db*"):
            shutil.move(file, away / file.name)
        with pytest.raises(WrongLedger, match="removed or replaced"):
            await campaign.probe.submit("plain")
        with pytest.raises(WrongLedger, match="the marker says it was made here"):
            await LocalBackend.open(state)
        for node in campaign.cluster.nodes:
            await node.kill()
        for file in away.iterdir():
            shutil.move(file, state / file.name)
        async with Probe.open(state, campaign.cluster.place, load()) as probe:
            for known in campaign.probe.acknowledged.values():
                probe.keep(known.turn, known.kind, known.note)
            await campaign.fill()
            await probe.submit("plain", session="afterwards")
            assert await probe.settle() == []
            assert (await probe.audit()).violations == []


@pytest.mark.rule(25)
@pytest.mark.parametrize("how", ["copied", "moved"])
async def test_a_folder_that_is_not_where_it_was_is_refused_until_somebody_says_why(
    hosts: Forge, tmp_path: Path, how: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        await campaign.submit(["slow", "plain"], "before")
        for node in campaign.cluster.nodes:
            await node.kill()
    state, there = tmp_path / "state", tmp_path / "elsewhere" / "state"
    there.parent.mkdir()
    if how == "copied":
        shutil.copytree(state, there, ignore=shutil.ignore_patterns("bells", "locks"))
    else:
        # A rename keeps the inode: the marker still knows the folder, as a file system would.
        shutil.copytree(state, there, ignore=shutil.ignore_patterns("bells", "locks"))
        shutil.rmtree(state)
    with pytest.raises(WrongLedger, match=r"--adopt moved.*--adopt copy"):
        await LocalBackend.open(there)
    assert Adoption(how.replace("copied", "copy")) in Adoption
    adopted(there)
    async with Campaign.open(hosts, there.parent, TWO) as campaign:
        turns = await campaign.submit(["plain"], "after")
        await campaign.probe.until_ended(turns)
        assert await campaign.probe.settle() == []


def adopted(path: Path) -> None:
    from nerve.common.sql.survey import raise_epoch

    place = adopt(path)
    for name in place.ledgers:
        raise_epoch(place.ledger(name), now=SystemClock().now_ms())


def test_errors_of_files_are_of_our_tree() -> None:
    assert issubclass(WrongLedger, NerveError)
