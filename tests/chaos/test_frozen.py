"""Hosts that stand still outside a write transaction: taken over after the lease, harmless when they wake."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from chaos.matrix import Campaign, seen
from chaos.points import FOUR, TWO
from support import effects
from support.cluster import FAST, Forge, Node
from support.effects import Effects

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(90)]

LEASE_SECONDS = 1.2
SHORT_LEASE = {
    **FAST,
    "NERVE_LEASE_SECONDS": str(LEASE_SECONDS),
    "NERVE_HEARTBEAT_SECONDS": "0.3",
}


def marks(campaign: Campaign, kind: str) -> list[effects.Mark]:
    world = campaign.probe.world
    file = world.asked if kind == effects.ASKED else world.effects
    return [mark for mark in effects.read(file) if mark.kind == kind]


async def owner(campaign: Campaign, kind: str) -> Node:
    """Whoever made the first mark of a kind."""

    async def there() -> bool:
        return bool(marks(campaign, kind))

    await seen(there, f"somebody {kind}")
    pid = marks(campaign, kind)[0].pid
    return next(node for node in campaign.cluster.nodes if node.pid == pid)


async def next_mark(campaign: Campaign, kind: str, other_than: Node) -> float:
    """When (monotonic) another process made such a mark."""

    async def there() -> bool:
        return any(mark.pid != other_than.pid for mark in marks(campaign, kind))

    await seen(there, f"another one {kind}")
    return next(mark.at for mark in marks(campaign, kind) if mark.pid != other_than.pid)


def registered(campaign: Campaign, ledger: str, pid: int) -> list[str]:
    """States of the incarnations of a process, the oldest first."""
    file = campaign.cluster.state / ledger
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        rows = connection.execute("select state from host where pid = ? order by id", (pid,))
        return [row[0] for row in rows.fetchall()]


async def rejoined(campaign: Campaign, ledger: str, node: Node) -> None:
    async def again() -> bool:
        return registered(campaign, ledger, node.pid) == ["RELEASED", "LIVE"]

    await seen(again, "the thawed process is a new incarnation")


@pytest.mark.rule(1)
@pytest.mark.rule(2)
@pytest.mark.rule(3)
async def test_a_frozen_brain_is_taken_over_after_its_lease_and_fenced_when_it_wakes(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, FOUR, environment=SHORT_LEASE) as campaign:
        await campaign.probe.submit("thinking")
        brain = await owner(campaign, effects.ASKED)
        await campaign.cluster.freeze_outside(brain)
        began = time.monotonic()
        taken_over = await next_mark(campaign, effects.ASKED, brain)
        assert taken_over - began < LEASE_SECONDS + 1
        assert await campaign.probe.settle() == []
        brain.thaw()
        await rejoined(campaign, "brain.db", brain)
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.effects) == (1, 1)


@pytest.mark.rule(3)
@pytest.mark.rule(5)
async def test_tools_of_frozen_hands_are_unknown_and_their_late_results_change_nothing(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, FOUR, environment=SHORT_LEASE) as campaign:
        turn = await campaign.probe.submit("slow")
        hands = await owner(campaign, effects.ENTERED)
        await campaign.cluster.freeze_outside(hands)
        began = time.monotonic()
        await seen(campaign.probe.any_unknown, "its outcome is UNKNOWN")
        assert time.monotonic() - began < LEASE_SECONDS + 1
        hands.thaw()
        await rejoined(campaign, "hands-hands.db", hands)
        _, why = await campaign.probe.why(turn.id)
        assert "UNKNOWN" in why
        await hands.kill()  # Only of a process that is gone is it known what it did.
        audit = await campaign.finish()
        assert audit.violations == []
        assert sum(Effects.read(campaign.probe.world.effects).entered.values()) == 1


@pytest.mark.rule(3)
async def test_a_repeatable_tool_of_frozen_hands_runs_again_elsewhere_after_the_lease(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, FOUR, environment=SHORT_LEASE) as campaign:
        await campaign.probe.submit("again_slow")
        hands = await owner(campaign, effects.ENTERED)
        await campaign.cluster.freeze_outside(hands)
        began = time.monotonic()
        taken_over = await next_mark(campaign, effects.ENTERED, hands)
        assert taken_over - began < LEASE_SECONDS + 1
        assert await campaign.probe.settle() == []
        hands.thaw()
        await rejoined(campaign, "hands-hands.db", hands)
        audit = await campaign.finish()
        assert audit.violations == []
        assert audit.completed == 1


@pytest.mark.rule(5)
async def test_hands_that_thaw_before_they_enter_a_tool_do_not_enter_it(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO, environment=SHORT_LEASE) as campaign:
        (old,) = campaign.cluster.of("hands")
        await old.terminate()
        hands = campaign.cluster.start("hands", faults="hands.engine.started=stop@1")
        await hands.ready()
        await campaign.probe.submit("plain")
        assert await hands.stopped(), "it froze just before its tool"
        standby = campaign.cluster.start("hands")
        await standby.ready()
        await seen(campaign.probe.any_unknown, "its outcome is UNKNOWN")
        hands.thaw()
        await rejoined(campaign, "hands-hands.db", hands)
        others = await campaign.submit(["plain"], "others go on")
        await campaign.probe.until_ended(others)
        await hands.kill()
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.unknown_between, audit.executions, audit.effects) == (1, 1, 1)


@pytest.mark.rule(4)
async def test_a_whole_machine_that_slept_takes_nothing_away_from_anybody(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, FOUR, environment=SHORT_LEASE) as campaign:
        await campaign.probe.submit("long")
        hands = await owner(campaign, effects.ENTERED)
        everybody = [node for node in campaign.cluster.nodes if node.running]
        for node in everybody:
            await campaign.cluster.freeze_outside(node)
        await asyncio.sleep(LEASE_SECONDS * 1.5)
        for node in everybody:
            node.thaw()
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.effects, audit.unknown_entered) == (1, 1, 0)
        assert registered(campaign, "hands-hands.db", hands.pid) == ["LIVE"]
