"""Arguments and results too large for a message, over the broker and the objects of one directory."""

import sqlite3
from pathlib import Path

import pytest

from nerve.brain.state.turn import TurnPhase
from nerve.brain.why import Reason
from nerve.common.settings import Settings
from nerve.protocol.envelope import ENVELOPE_BYTES_MAX
from support.large_world import FAST, KIB, MIB, LargeWorld, submit
from support.waiting import until

pytestmark = pytest.mark.timeout(120)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.mark.capability("E7.1", "E7.2", "G3.2")
@pytest.mark.report("U51", "U52")
async def test_large_values_travel_by_reference_in_both_directions_and_small_ones_do_not(
    tmp_path: Path,
) -> None:
    world = LargeWorld(folder=tmp_path)
    sizes = [
        (100, 100),
        (255 * KIB, 255 * KIB),
        (257 * KIB, 100),
        (100, 257 * KIB),
        (3 * MIB, 3 * MIB),
    ]
    async with world.both() as (runtime, _):
        turns = [await submit(runtime, f"t{i}", *size) for i, size in enumerate(sizes)]
        results = [await turn.result(20) for turn in turns]
    assert [result.text for result in results] == [
        f"t{i} came={there} right=True back={back}" for i, (there, back) in enumerate(sizes)
    ]
    assert sorted(world.calls()) == [f"t{i}" for i in range(len(sizes))]
    # One object for each value that is over the limit, under its Session and execution.
    scopes = sorted(path.relative_to(world.state / "objects").parts[:4] for path in world.values())
    assert [(scope[0], scope[1], scope[3]) for scope in scopes] == [
        ("acme", "s-t2", "arguments"),
        ("acme", "s-t3", "result"),
        ("acme", "s-t4", "arguments"),
        ("acme", "s-t4", "result"),
    ]
    for ledger, column in (("hands-hands", "command"), ("hands-hands", "report.envelope")):
        table = column.partition(".")[0] if "." in column else "execution"
        name = column.rpartition(".")[2]
        [(most,)] = rows(world.state / f"{ledger}.db", f"select max(length({name})) from {table}")
        assert most is None or int(str(most)) < 257 * KIB < ENVELOPE_BYTES_MAX


@pytest.mark.capability("E7.3")
@pytest.mark.report("U57")
@pytest.mark.rule(15)
@pytest.mark.parametrize("how", ["missing", "wrong"])
async def test_a_command_whose_object_is_lost_waits_visibly_and_goes_on_when_it_is_back(
    tmp_path: Path, how: str
) -> None:
    world = LargeWorld(folder=tmp_path, settings=Settings(**FAST, inbox_tries_max=3))
    async with world.brain() as brain:
        assert brain.runtime is not None
        turn = await submit(brain.runtime, "lost", 300 * KIB, 10)
        await until(lambda: world.values(), "the arguments are stored")
        [path] = world.values()
        body = path.read_bytes()
        path.chmod(0o600)
        path.unlink() if how == "missing" else path.write_bytes(b"?" * len(body))
        async with world.hands() as hands:
            # A good one beside it goes through.
            good = await submit(brain.runtime, "good", 300 * KIB, 10)
            assert (await good.result(30)).phase is TurnPhase.COMPLETED

            async def why() -> str:
                return " ".join((await turn.status()).why)

            seen: list[str] = []
            while "quarantined" not in (said := await why()):
                seen.append(said)
                await hands.clock.sleep(0.05)
            assert "is quarantined by its Hands" in said
            assert any("is held by its Hands" in each for each in seen)
            assert (await turn.status()).reasons == [Reason.TOOLS]
            assert world.calls() == ["good"]
            if how == "missing":
                path.write_bytes(body)
            else:
                path.chmod(0o600)
                path.write_bytes(body)
            assert (await turn.result(30)).text == f"lost came={300 * KIB} right=True back=10"
    assert world.calls() == ["good", "lost"]
    assert rows(world.state / "hands-hands.db", "select * from inbox") == []


@pytest.mark.capability("E7.3")
@pytest.mark.report("U57")
async def test_an_update_whose_object_is_lost_waits_visibly_and_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    world = LargeWorld(folder=tmp_path, settings=Settings(**FAST, inbox_tries_max=3))
    async with world.hands():
        async with world.brain() as brain:
            assert brain.runtime is not None
            turn = await submit(brain.runtime, "lost", 10, 300 * KIB)
            id = turn.id
            await until(lambda: world.calls(), "it was called")
        # Nobody hears of the result while the Brain is away.
        await until(lambda: world.values(), "the result is stored")
        [path] = world.values()
        body = path.read_bytes()
        path.chmod(0o600)
        path.unlink()
        async with world.brain() as brain:
            assert brain.runtime is not None
            turn = await brain.runtime.get_turn(id)
            while "is quarantined" not in " ".join((await turn.status()).why):
                await brain.clock.sleep(0.05)
            assert "The result of carry" in " ".join((await turn.status()).why)
            path.write_bytes(body)
            result = await turn.result(30)
            assert result.text == f"lost came=10 right=True back={300 * KIB}"
    assert world.calls() == ["lost"]
    assert rows(world.state / "brain.db", "select * from inbox") == []
