"""The audit sees what it is there to see: each wrong is made by hand and must be found."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from chaos.matrix import Campaign
from chaos.points import TWO
from support import effects
from support.cluster import Forge
from support.probe import Audit, Unknown

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(60)]

Wrong = Callable[[Campaign, str], None]


def edit(statement: str) -> Wrong:
    def wrong(campaign: Campaign, turn: str) -> None:
        with closing(sqlite3.connect(campaign.cluster.state / "brain.db")) as ledger, ledger:
            ledger.execute(statement, {"turn": turn})

    return wrong


def second_entry(campaign: Campaign, turn: str) -> None:
    effects.write(campaign.probe.world.effects, effects.ENTERED, f"{turn}.x1", 2, "plain")


def second_effect(campaign: Campaign, turn: str) -> None:
    effects.write(campaign.probe.world.effects, effects.EFFECT, f"{turn}.x1", 1, "plain")


def second_question(campaign: Campaign, turn: str) -> None:
    effects.write(campaign.probe.world.asked, effects.ASKED, f"{turn}/model:1")


def no_effect(campaign: Campaign, turn: str) -> None:
    campaign.probe.world.effects.write_text("")


def unknown_although_repeatable(campaign: Campaign, turn: str) -> None:
    campaign.probe.unknown[turn] = Unknown(
        execution=f"{turn}.x1", attempt=1, tool="again", entered=True, effects=0
    )


WRONGS: dict[str, tuple[str, Wrong]] = {
    "an acknowledged Turn is gone": ("forgotten", edit("delete from turn where id = :turn")),
    "a tool was entered again": ("doubled", second_entry),
    "a tool took effect twice": ("doubled", second_effect),
    "a model was asked after its answer": ("asked_again", second_question),
    "a success without an effect": ("wrong_end", no_effect),
    "a Turn that failed": ("wrong_end", edit("update turn set phase = 'FAILED' where id = :turn")),
    "an event is missing": ("torn_events", edit("delete from event where sequence = 2")),
    "a second end": (
        "torn_events",
        edit(
            "insert into event select session, sequence + 1, thread, turn, run, type, body,"
            " created_at from event where type = 'turn.completed'"
        ),
    ),
    "a repeatable tool is UNKNOWN": ("unknown_repeatable", unknown_although_repeatable),
}


@pytest.mark.parametrize("name", WRONGS)
async def test_the_audit_finds(hosts: Forge, tmp_path: Path, name: str) -> None:
    kind, wrong = WRONGS[name]
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        turn = await campaign.probe.submit("plain")
        assert (await campaign.finish()).violations == []
        wrong(campaign, turn.id)
        audit: Audit = await campaign.probe.audit()
        assert getattr(audit, kind), audit


async def test_the_audit_finds_a_turn_that_waits_for_ever(hosts: Forge, tmp_path: Path) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        for node in campaign.cluster.nodes:
            await node.kill()
        turn = await campaign.probe.submit("plain")
        left = await campaign.probe.settle(0.3)
        assert [turn.id in story for story in left] == [True]
        assert (await campaign.probe.audit(left)).lost == left
