"""Large values between real processes: killed in the middle, and many of them in little memory."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.objects.files import FileObjects
from nerve.common.wakeups import Doorbell
from nerve.deploy.stores import KEY, SECRET
from nerve.protocol import topics
from nerve.protocol.canonical import canonical_bytes
from nerve.protocol.objects import Holds, value_scope
from support.buckets import bucket
from support.hands_world import NAMESPACE, Asker
from support.large_world import FAST, KIB, MIB, LargeWorld, text_of
from support.s3_faults import S3Faults
from support.terminal import Running, Terminal
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TESTS = Path(__file__).parents[2]
APP = """\
from pathlib import Path

from support.large_world import LargeWorld

world = LargeWorld(folder=Path(__file__).parent)
tools = world.catalog()
carrier = world.agent()
"""
COMMANDS = int(os.environ.get("NERVE_LARGE_COMMANDS", "150"))
"""5,000 is the size that the promise names; it wants as many MiB of disk."""
MEMORY_MIB = 300


def terminal_of(world: LargeWorld, **environment: str) -> Terminal:
    (world.folder / "app.py").write_text(APP)
    path = f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    settings = {f"NERVE_{name.upper()}": str(value) for name, value in FAST.items()}
    given = {"PYTHONPATH": path, "NERVE_DIR": str(world.state), **settings, **environment}
    return Terminal(world.folder, given)


@pytest.mark.external
@pytest.mark.chaos
@pytest.mark.capability("E7.2", "E7.3")
@pytest.mark.report("U56")
async def test_both_sides_killed_while_the_store_is_busy_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    where = bucket()
    world = LargeWorld(folder=tmp_path)
    async with S3Faults.before(str(where.endpoint)) as faults:
        terminal = terminal_of(
            world,
            NERVE_OBJECTS=f"s3://{where.bucket}/{where.prefix}?endpoint={faults.url}",
            **{KEY: str(where.key), SECRET: str(where.secret)},
        )

        async def host(role: str) -> Running:
            return await asyncio.to_thread(terminal.host, role, "app.py")

        brain, hands = await host("brain"), await host("hands")
        faults.busy = True
        names = [f"k{number}" for number in range(3)]
        for name in names:
            text = f"{name} {300 * KIB} {300 * KIB}"
            submitted = await asyncio.to_thread(
                terminal.run, "submit", "carrier", text, "--request-id", name
            )
            assert submitted.code == 0
        await until(lambda: any("arguments" in each for each in faults.seen), "a put is tried")
        brain.kill()
        faults.busy = False
        brain = await host("brain")
        await until(world.calls, "a tool runs")
        faults.busy = True
        brain.kill()
        faults.busy = False
        await host("brain")
        for name in names:
            text = f"{name} {300 * KIB} {300 * KIB}"
            done = await asyncio.to_thread(
                terminal.run, "submit", "carrier", text, "--request-id", name, "--wait"
            )
            assert (
                done.out.splitlines()[-1] == f"{name} came={300 * KIB} right=True back={300 * KIB}"
            )
        hands.kill()
        terminal.close()
    assert sorted(world.calls()) == names


def peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no peak")


@pytest.mark.capability("E7.2")
@pytest.mark.report("U49")
async def test_many_commands_of_a_mebibyte_queued_take_little_memory_of_hands(
    tmp_path: Path,
) -> None:
    if shutil.disk_usage(tmp_path).free < 2 * COMMANDS * MIB:
        pytest.skip(f"{COMMANDS} MiB of objects do not fit twice onto this disk")
    world = LargeWorld(folder=tmp_path)
    asker = Asker(world.catalog())
    terminal = terminal_of(world)
    hands = terminal.host("hands", "app.py")
    hands.stop()
    store = FileObjects(world.state / "objects")
    await store.open()
    bell = Doorbell.open(world.state)
    broker = SqliteBroker(world.state, bell)
    await broker.open()
    for number in range(COMMANDS):
        name = f"m{number}"
        arguments = {"name": name, "text": text_of(MIB, name), "back": 1}
        command = asker.command(asker.catalog.get("carry"), arguments)
        scope = value_scope(NAMESPACE, "s-1", command.execution, Holds.ARGUMENTS)
        ref = await store.put(scope, canonical_bytes(arguments))
        sent = command.model_copy(update={"arguments": {}, "arguments_ref": ref})
        await broker.publish(topics.commands("local", "hands"), [asker.seal(sent)])
    await broker.close()
    bell.close()
    await store.close()
    hands = terminal.host("hands", "app.py")
    await until(lambda: len(world.calls()) == COMMANDS, "all of them ran", 200)
    peak = peak_mib(hands.pid)
    terminal.close()
    assert sorted(world.calls()) == sorted(f"m{number}" for number in range(COMMANDS))
    assert peak < MEMORY_MIB
