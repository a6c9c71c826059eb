"""Kills at points that no healthy run reaches, and the proof that the matrix leaves no point out."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from chaos.matrix import Campaign
from chaos.points import ELSEWHERE, MEMORY, ONE, RARE, ROOMS, TWO, cases, load_all, matches
from nerve.common import faults
from nerve.common.objects.files import FileObjects
from support.cluster import Cluster, Forge, Node

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

TIMES = ("before_commit", "after_commit")


def test_the_matrix_holds_every_registered_point() -> None:
    load_all()
    known = {case.point for arrangement in (TWO, ONE, MEMORY) for case in cases(arrangement)}
    left = {
        name
        for name in faults.names()
        if name.startswith(ROOMS) and name not in known and not matches(name, (*RARE, *ELSEWHERE))
    }
    assert left == set(), "give these a case in chaos/points.py"


def died_at(node: Node, point: str) -> bool:
    return any(hit.name == point for hit in node.hits())


def edit(file: Path, *statements: str) -> None:
    """What only a defect or the passing of days would write."""
    with closing(sqlite3.connect(file)) as ledger, ledger:
        for statement in statements:
            ledger.execute(statement)


@pytest.mark.parametrize("moment", TIMES)
async def test_a_thread_that_waits_for_nothing_is_woken_in_spite_of_kills(
    hosts: Forge, tmp_path: Path, moment: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (brain,) = campaign.cluster.of("brain")
        await brain.terminate()
        brain = campaign.cluster.start("brain", faults="brain.deliver.after_commit=kill@1")
        await campaign.submit(["plain"], "wake")
        await brain.ended()
        edit(
            campaign.cluster.state / "brain.db",
            "update turn set phase = 'WAITING' where ended_at is null",
            "update thread set phase = 'WAITING', host = null where head is not null",
        )
        point = f"brain.wake_idle_waiters.{moment}"
        victim = campaign.cluster.start("brain", faults=f"{point}=kill@1")
        await victim.ended()
        assert died_at(victim, point)
        assert (await campaign.finish()).violations == []


@pytest.mark.rule(4)
@pytest.mark.parametrize("moment", TIMES)
async def test_what_a_clock_left_ahead_is_pulled_back_in_spite_of_kills(
    hosts: Forge, tmp_path: Path, moment: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (brain,) = campaign.cluster.of("brain")
        await brain.terminate()
        await campaign.submit(["plain"], "ahead")
        edit(
            campaign.cluster.state / "brain.db",
            "update thread set ready_at = ready_at + 36000000 where phase = 'READY'",
        )
        point = f"brain.pull_ahead.{moment}"
        victim = campaign.cluster.start("brain", faults=f"{point}=kill@1")
        await victim.ended()
        assert died_at(victim, point)
        assert (await campaign.finish()).violations == []


@pytest.mark.rule(15)
@pytest.mark.parametrize("moment", TIMES)
async def test_an_update_that_no_ledger_takes_is_set_aside_in_spite_of_kills(
    hosts: Forge, tmp_path: Path, moment: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (brain,) = campaign.cluster.of("brain")
        await brain.terminate()
        ledger = campaign.cluster.state / "brain.db"
        edit(
            ledger,
            "create trigger chaos before update of outcome on intent when new.outcome = 'SUCCEEDED'"
            " begin select raise(abort, 'by hand'); end",
        )
        point = f"brain.set_aside.{moment}"
        victim = campaign.cluster.start("brain", faults=f"{point}=kill@1")
        await victim.ready()
        await campaign.submit(["plain", "slow"], "set aside")
        await victim.ended()
        assert died_at(victim, point)
        edit(ledger, "drop trigger chaos")
        assert (await campaign.finish()).violations == []


@pytest.mark.rule(17)
@pytest.mark.parametrize("moment", TIMES)
async def test_forgetting_survives_a_kill(hosts: Forge, tmp_path: Path, moment: str) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        await campaign.submit(["plain", "many"], "forget")
        assert (await campaign.finish()).violations == []
        (hands,) = campaign.cluster.of("hands")
        await hands.terminate()
        ledger = campaign.cluster.state / "hands-hands.db"
        edit(ledger, "update execution set forget_at = 1, command = null")
        point = f"hands.forget.{moment}"
        victim = campaign.cluster.start("hands", faults=f"{point}=kill@1")
        await victim.ended()
        assert died_at(victim, point)
        await campaign.submit(["plain"], "after")
        assert (await campaign.finish()).violations == []


@pytest.mark.rule(17)
@pytest.mark.capability("F10.1")
@pytest.mark.parametrize("moment", TIMES)
async def test_what_is_removed_after_its_time_is_whole_or_gone_in_spite_of_kills(
    hosts: Forge, tmp_path: Path, moment: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        turns = await campaign.submit(["plain", "many"], "remove")
        await campaign.probe.until_ended(turns)
        (brain,) = campaign.cluster.of("brain")
        await brain.terminate()
        point = f"common.retention.prune.{moment}"
        soon = {"NERVE_KEEP_HOSTS_DAYS": "1e-9", "NERVE_RETENTION_SECONDS": "0.1"}
        victim = campaign.cluster.start("brain", faults=f"{point}=kill@1", **soon)
        await victim.ended()
        assert died_at(victim, point)
        await campaign.submit(["plain"], "after")
        assert (await campaign.finish()).violations == []


@pytest.mark.parametrize("point", ["before_put", "before_link", "before_folder_flush", "after_put"])
async def test_an_object_is_there_whole_or_not_at_all(
    hosts: Forge, tmp_path: Path, point: str
) -> None:
    cluster = Cluster(hosts, tmp_path)
    folder = tmp_path / "objects"
    body = "an object " * 1000
    name = f"common.objects.files.{point}"
    try:
        target = "support.cluster_rare:put_object"
        victim = cluster.run("objects", target, (str(folder), body), f"{name}=kill@1", {})
        await victim.ended()
        assert died_at(victim, name)
        objects = FileObjects(folder)
        await objects.open()
        try:
            ref = await objects.put("chaos", body.encode())
            assert await objects.get(ref) == body.encode()
        finally:
            await objects.close()
    finally:
        await cluster.close()
