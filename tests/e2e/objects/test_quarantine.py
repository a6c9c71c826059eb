"""`nerve quarantine` on both sides: what waits for a person is seen, tried again, or given up."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nerve.brain.handles import Turn
from nerve.common.settings import Settings
from nerve.deploy.host import Host
from support.large_world import FAST, KIB, LargeWorld, submit
from support.terminal import Done, Terminal
from support.waiting import until

pytestmark = pytest.mark.timeout(120)


async def taken_away(world: LargeWorld) -> tuple[Path, bytes]:
    await until(world.values, "the value is stored")
    [path] = world.values()
    body = path.read_bytes()
    path.chmod(0o600)
    path.unlink()
    return path, body


async def nerve(world: LargeWorld, *arguments: str) -> Done:
    """A command beside the hosts, in a process of its own."""
    terminal = Terminal(world.folder, {"NERVE_DIR": str(world.state)})
    return await asyncio.to_thread(terminal.run, *arguments)


async def why(turn: Turn) -> str:
    return " ".join((await turn.status()).why)


async def quarantined(turn: Turn, host: Host) -> None:
    while "quarantined" not in await why(turn):
        await host.clock.sleep(0.05)


async def entry(world: LargeWorld) -> dict[str, Any]:
    listed = json.loads((await nerve(world, "quarantine", "ls", "--json")).out)
    [found] = listed["quarantined"]
    return dict(found)


@pytest.mark.capability("E7.3")
@pytest.mark.report("U57")
@pytest.mark.rule(15)
@pytest.mark.parametrize("decision", ["replay", "drop"])
async def test_a_quarantined_command_is_seen_and_replayed_or_given_up(
    tmp_path: Path, decision: str
) -> None:
    # Brain repeats its command so rarely that nothing goes on by itself.
    slow: dict[str, Any] = FAST | {"repeat_first_seconds": 3600.0}
    world = LargeWorld(folder=tmp_path, settings=Settings(**slow, inbox_tries_max=1))
    async with world.brain() as brain:
        assert brain.runtime is not None
        turn = await submit(brain.runtime, "lost", 300 * KIB, 10)
        path, body = await taken_away(world)
        async with world.hands():
            await quarantined(turn, brain)
            found = await entry(world)
            execution = str(found["execution"])
            assert (found["ledger"], found["turn"]) == ("hands-hands", turn.id)
            assert (found["kind"], found["count"]) == ("command.start", 1)
            assert "not in the store" in str(found["reason"])
            shown = await nerve(world, "quarantine", "show", execution)
            assert f"refers to acme/s-lost/{execution}/arguments/sha256:" in shown.out
            assert "lost/lost" not in shown.out
            if decision == "replay":
                path.write_bytes(body)
                assert (await nerve(world, "quarantine", "replay", execution)).code == 0
                assert (await turn.result(30)).text == f"lost came={300 * KIB} right=True back=10"
                assert world.calls() == ["lost"]
            else:
                refused = await nerve(world, "quarantine", "drop", execution, "--json")
                assert (refused.code, refused.error["code"]) == (2, "bad_input")
                dropped = await nerve(world, "quarantine", "drop", execution, "--yes", "--json")
                assert (dropped.code, dropped.value["dropped"]) == (0, 1)
                assert world.calls() == []
            assert (await nerve(world, "quarantine", "ls")).out == "Nothing is quarantined.\n"
            gone = await nerve(world, "quarantine", "show", execution, "--json")
            assert (gone.code, gone.error["code"]) == (4, "not_found")
    if decision == "drop":
        async with world.brain(Settings(**FAST)) as brain, world.hands():
            assert brain.runtime is not None
            again = await brain.runtime.get_turn(turn.id)
            result = await again.result(30)
            assert result.failure is not None and "an operator gave it up" in str(result.failure)
        assert world.calls() == []


@pytest.mark.capability("E7.3")
@pytest.mark.report("U57")
@pytest.mark.parametrize("decision", ["replay", "drop"])
async def test_a_quarantined_result_is_seen_and_replayed_or_given_up(
    tmp_path: Path, decision: str
) -> None:
    slow: dict[str, Any] = FAST | {
        "inquiry_silence_seconds": 3600.0,
        "repeat_first_seconds": 3600.0,
    }
    world = LargeWorld(folder=tmp_path, settings=Settings(**slow, inbox_tries_max=1))
    async with world.hands():
        async with world.brain() as brain:
            assert brain.runtime is not None
            turn = await submit(brain.runtime, "lost", 10, 300 * KIB)
            await until(world.calls, "it was called")
        path, body = await taken_away(world)
        async with world.brain() as brain:
            assert brain.runtime is not None
            turn = await brain.runtime.get_turn(turn.id)
            await quarantined(turn, brain)
            assert "`nerve quarantine replay" in await why(turn)
            found = await entry(world)
            execution = str(found["execution"])
            assert (found["ledger"], found["turn"], found["count"]) == ("brain", turn.id, 1)
            if decision == "replay":
                path.write_bytes(body)
                assert (await nerve(world, "quarantine", "replay", execution)).code == 0
                result = await turn.result(30)
                assert result.text == f"lost came=10 right=True back={300 * KIB}"
            else:
                dropped = await nerve(world, "quarantine", "drop", execution, "--yes", "--json")
                assert (dropped.code, dropped.value["dropped"]) == (0, 1)
                await turn.result(30)
                [view] = await turn.tools()
                assert (view.outcome, view.effect.value) == ("SUCCEEDED", "completed")
                assert "its result is lost; an operator gave it up" in str(view.text)
            assert (await nerve(world, "quarantine", "ls")).out == "Nothing is quarantined.\n"
    assert world.calls() == ["lost"]
