"""Reports of others' lost and doubled work, played with real processes."""

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from chaos.matrix import Campaign, seen
from chaos.points import FOUR, ONE, TWO
from nerve.common import faults
from nerve.hands.state.record import ATTEMPTS_MAX
from support.cluster import FAST, Forge
from support.cluster_world import MIX
from support.effects import Effects

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


def effects_of(campaign: Campaign) -> Effects:
    return Effects.read(campaign.probe.world.effects)


def ask(file: Path, question: str) -> int:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as ledger:
        return int(ledger.execute(question).fetchone()[0])


@asynccontextmanager
async def write_lock(file: Path) -> AsyncGenerator[None]:
    """Hold the write lock of a file, as a process that was paused inside a transaction does."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=5)) as holder:
        holder.execute("begin immediate")
        try:
            yield
        finally:
            holder.execute("rollback")


@pytest.mark.report("U01")
async def test_a_hundred_prefetched_commands_outlive_their_host(
    hosts: Forge, tmp_path: Path
) -> None:
    environment = {**FAST, "NERVE_HANDS_SLOTS": "4"}
    async with Campaign.open(hosts, tmp_path, TWO, environment=environment) as campaign:
        for number in range(25):
            await campaign.probe.submit("many", session=f"prefetch{number}")
        ledger = campaign.cluster.state / "hands-hands.db"

        async def admitted() -> bool:
            return ask(ledger, "select count(*) from execution") > 50

        await seen(admitted, "half of the commands are prefetched")
        (hands,) = campaign.cluster.of("hands")
        await hands.kill()
        audit = await campaign.finish()
        assert audit.violations == []
        assert ask(ledger, "select count(*) from execution") == 100
        assert audit.completed == 25


@pytest.mark.report("U02")
@pytest.mark.rule(20)
async def test_a_tool_that_kills_its_process_is_neither_dropped_nor_run_again(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (hands,) = campaign.cluster.of("hands")
        turn = await campaign.probe.submit("suicidal")
        await hands.ended()
        await campaign.fill()
        await seen(campaign.probe.any_unknown, "its outcome is UNKNOWN")
        _, why = await campaign.probe.why(turn.id)
        assert "UNKNOWN" in why and "It is not run again" in why
        audit = await campaign.finish()
        assert audit.violations == []
        assert list(effects_of(campaign).done.values()) == [1]
        assert audit.unknown_entered == 1


@pytest.mark.report("U46")
async def test_a_command_that_kills_every_host_stops_after_a_bound(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        turn = await campaign.probe.submit("stubborn")
        deaths = 0
        while deaths <= ATTEMPTS_MAX:
            (hands,) = campaign.cluster.of("hands")
            ended = asyncio.ensure_future(hands.ended(30))
            settled = asyncio.ensure_future(seen(campaign.probe.any_unknown, "it is given up", 30))
            await asyncio.wait([ended, settled], return_when=asyncio.FIRST_COMPLETED)
            for each in (ended, settled):
                each.cancel()
            if hands.running:
                break
            deaths += 1
            await campaign.fill()
        assert deaths == ATTEMPTS_MAX
        _, why = await campaign.probe.why(turn.id)
        assert f"its host died in each of {ATTEMPTS_MAX} attempts" in why
        await campaign.submit(["plain", "many"], "others")
        left = await campaign.probe.settle()
        assert left == []


@pytest.mark.report("U03")
async def test_no_acknowledgement_precedes_the_row_of_its_command(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (hands,) = campaign.cluster.of("hands")
        await hands.terminate()
        points = ("common.inbox.received", "hands.admit.after_commit", "common.inbox.before_ack")
        hands = campaign.cluster.start(
            "hands", faults=";".join(f"{point}=record@*" for point in points)
        )
        await hands.ready()
        ledger = campaign.cluster.state / "hands-hands.db"
        async with write_lock(ledger):
            await campaign.probe.submit("plain")

            async def received() -> bool:
                return any(hit.name == points[0] for hit in faults.read_log(hands.log))

            await seen(received, "the command was received")
            assert ask(ledger, "select count(*) from execution") == 0
            assert [hit.name for hit in hands.hits() if hit.name == points[2]] == []
            queue = campaign.cluster.state / "broker.db"
            assert ask(queue, "select count(*) from message where topic like '%commands%'") == 1
        audit = await campaign.finish()
        assert audit.violations == []
        order = [hit.name for hit in hands.hits() if hit.name != points[0]]
        assert order[:2] == [points[1], points[2]]


@pytest.mark.report("U08")
@pytest.mark.report("U37")
@pytest.mark.report("U36")
async def test_a_broker_that_is_away_delays_delivery_and_nothing_else(
    hosts: Forge, tmp_path: Path
) -> None:
    environment = {**FAST, "NERVE_PUBLISH_SECONDS": "0.3"}
    async with Campaign.open(hosts, tmp_path, TWO, environment=environment) as campaign:
        brain = campaign.cluster.state / "brain.db"
        async with write_lock(campaign.cluster.state / "broker.db"):
            began = time.monotonic()
            for number in range(20):
                await campaign.probe.submit("plain", session=f"away{number}")
            submitted = time.monotonic() - began

            async def waiting() -> bool:
                return ask(brain, "select count(*) from outbox where id like '%/start'") == 20

            await seen(waiting, "every command waits in the outbox")
            await asyncio.sleep(0.5)  # Longer than the deadline of a publish: it is tried again.
            assert await waiting()
        assert submitted < 2.0
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.effects) == (20, 20)
        assert ask(brain, "select count(*) from outbox where id like '%/start'") == 0


@pytest.mark.report("U38")
@pytest.mark.report("U36")
@pytest.mark.rule(14)
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_broker_that_loses_doubles_shuffles_and_swallows_confirms(
    hosts: Forge, tmp_path: Path, seed: int
) -> None:
    environment = {**FAST, "CHAOS_DISORDER": str(seed)}
    async with Campaign.open(hosts, tmp_path, TWO, environment=environment) as campaign:
        for _ in range(4):
            await campaign.submit(MIX, f"disorder {seed}")
        audit = await campaign.finish(60)
        assert audit.violations == []
        assert audit.completed == 4 * len(MIX)
        assert (audit.unknown_entered, audit.unknown_between) == (0, 0)


@pytest.mark.report("U16")
async def test_a_brain_that_restarts_does_not_hand_out_a_running_tool_again(
    hosts: Forge, tmp_path: Path
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        turn = await campaign.probe.submit("long")

        async def entered() -> bool:
            return bool(effects_of(campaign).entered)

        await seen(entered, "the tool was entered")
        for _ in range(3):
            (brain,) = campaign.cluster.of("brain")
            await brain.kill()
            await campaign.fill()
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.unknown_entered) == (1, 0)
        (tool,) = await (await campaign.probe.runtime.get_turn(turn.id)).tools()
        assert effects_of(campaign).starts(tool.execution) == 1
        assert tool.attempt == 1


@pytest.mark.report("U19")
@pytest.mark.rule(3)
async def test_a_tool_that_blocks_the_loop_for_three_leases_keeps_its_execution(
    hosts: Forge, tmp_path: Path
) -> None:
    environment = {
        **FAST,
        "NERVE_LEASE_SECONDS": "1",
        "NERVE_HEARTBEAT_SECONDS": "0.25",
        "CHAOS_BLOCK_SECONDS": "3.2",
    }
    async with Campaign.open(hosts, tmp_path, FOUR, environment=environment) as campaign:
        await campaign.probe.submit("blocking")
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.effects, audit.unknown_entered) == (1, 1, 0)
        assert sum(effects_of(campaign).entered.values()) == 1


@pytest.mark.report("U23")
@pytest.mark.report("U21")
@pytest.mark.parametrize("arrangement", [TWO, ONE])
async def test_twenty_unfinished_turns_go_on_after_a_restart_with_nobody_there(
    hosts: Forge, tmp_path: Path, arrangement: str
) -> None:
    async with Campaign.open(hosts, tmp_path, arrangement) as campaign:
        chance = random.Random(7)
        kinds = [chance.choice(MIX) for _ in range(20)]
        await campaign.submit(kinds, "restart")
        for node in campaign.cluster.nodes:
            await node.kill()
        assert len(await campaign.probe.unfinished()) > 0
        audit = await campaign.finish()
        assert audit.violations == []
        assert audit.completed == 20


@pytest.mark.report("U111")
@pytest.mark.report("U112")
@pytest.mark.report("U22")
@pytest.mark.parametrize(("arrangement", "rounds"), [(TWO, 30), (ONE, 15)])
async def test_sigterm_at_any_time_ends_in_order_and_doubles_nothing(
    hosts: Forge, tmp_path: Path, arrangement: str, rounds: int
) -> None:
    async with Campaign.open(hosts, tmp_path, arrangement) as campaign:
        chance = random.Random(rounds)
        grace = float(FAST["NERVE_DRAIN_SECONDS"]) + 2
        for number in range(rounds):
            await campaign.fill()
            await campaign.submit(chance.sample(MIX, 3), f"round {number}")
            await asyncio.sleep(0.06 * chance.random())
            node = chance.choice([each for each in campaign.cluster.nodes if each.running])
            began = time.monotonic()
            assert await node.terminate(grace + 10) == 0, node.text()
            assert time.monotonic() - began < grace
        audit = await campaign.finish()
        assert audit.violations == []
        assert audit.completed == audit.turns
        # Nothing was killed, so nothing may be UNKNOWN.
        assert (audit.unknown_entered, audit.unknown_between) == (0, 0)
        if arrangement == TWO:
            for node in campaign.cluster.of("hands"):
                await node.terminate()
            queue = campaign.cluster.state / "broker.db"
            commands = "select count(*) from message where topic like '%commands%'"
            assert ask(queue, commands) == 0


@pytest.mark.report("U22")
@pytest.mark.report("U116")
@pytest.mark.rule(3)
async def test_a_drain_of_three_leases_keeps_what_it_owns(hosts: Forge, tmp_path: Path) -> None:
    environment = {**FAST, "NERVE_LEASE_SECONDS": "1", "NERVE_HEARTBEAT_SECONDS": "0.25"}
    async with Campaign.open(hosts, tmp_path, FOUR, environment=environment) as campaign:
        turn = await campaign.probe.submit("long")

        async def begun() -> bool:
            return await campaign.entered(turn.id)

        await seen(begun, "the tool was entered")
        stopping = [node for node in campaign.cluster.nodes if node.running]
        ended = await asyncio.gather(*(node.terminate() for node in stopping))
        assert ended == [0] * len(stopping)
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.effects, audit.unknown_entered) == (1, 1, 0)
        assert sum(effects_of(campaign).entered.values()) == 1


@pytest.mark.rule(7)
@pytest.mark.parametrize(
    ("role", "point"),
    [
        ("brain", "brain.run.restored"),
        ("brain", "brain.intake.received"),
        ("hands", "hands.engine.started"),
        ("hands", "hands.intake.before_admit"),
        ("hands", "hands.engine.after_tool"),
    ],
)
async def test_what_a_living_host_lost_inside_is_taken_up_again(
    hosts: Forge, tmp_path: Path, role: str, point: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (old,) = campaign.cluster.of(role)
        await old.terminate()
        node = campaign.cluster.start(role, faults=f"{point}=raise@2")
        await node.ready()
        await campaign.submit(["plain", "many", "steps", "again"], point)
        if point == "hands.engine.after_tool":
            await seen(campaign.probe.any_unknown, "a result that was lost is UNKNOWN")
            await node.kill()  # Only of a process that is gone is it known what it did.
        audit = await campaign.finish()
        assert [hit.name for hit in node.hits()] == [point]
        assert audit.violations == []
        lost_results = int(point == "hands.engine.after_tool")
        assert audit.completed == 4
        assert audit.unknown_between == 0
        assert audit.unknown_entered >= lost_results


@pytest.mark.rule(8)
@pytest.mark.parametrize("role", ["brain", "hands"])
async def test_commits_that_are_always_in_doubt_give_the_verdicts_that_were_written(
    hosts: Forge, tmp_path: Path, role: str
) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        (old,) = campaign.cluster.of(role)
        await old.terminate()
        node = campaign.cluster.start(role, faults="sql.in_doubt=raise@*")
        await node.ready()
        await campaign.submit([*MIX, *MIX], "in doubt")
        audit = await campaign.finish()
        assert len(node.hits()) > len(MIX)
        assert audit.violations == []
        assert audit.completed == 2 * len(MIX)
        assert (audit.unknown_entered, audit.unknown_between) == (0, 0)


@pytest.mark.report("U113")
async def test_waiting_for_a_tool_at_the_end_costs_no_cpu(hosts: Forge, tmp_path: Path) -> None:
    async with Campaign.open(hosts, tmp_path, TWO) as campaign:
        await campaign.probe.submit("long")

        async def entered() -> bool:
            return bool(effects_of(campaign).entered)

        await seen(entered, "the tool was entered")
        (hands,) = campaign.cluster.of("hands")
        before, began = cpu_seconds(hands.pid), time.monotonic()
        ended = asyncio.ensure_future(hands.terminate())
        used = 0.0
        while hands.running and time.monotonic() - began < 2.5:
            used = cpu_seconds(hands.pid) - before
            await asyncio.sleep(0.05)
        assert hands.running, "the tool is waited for"
        assert used < 0.2 * (time.monotonic() - began)
        assert await ended == 0
        audit = await campaign.finish()
        assert audit.violations == []
        assert (audit.completed, audit.effects, audit.unknown_entered) == (1, 1, 0)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
