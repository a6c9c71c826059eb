"""Checkpoints too large for a row stand in the object store, and go where their Thread goes."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nerve.brain.harness import (
    Checkpoint,
    Definition,
    Facts,
    Finished,
    Frame,
    HarnessFlags,
    HarnessHost,
    ToolOutcome,
)
from nerve.brain.schedule.failures import SET_BACK_DELAY_MS
from nerve.common.clock import VirtualClock
from nerve.common.objects import FileObjects
from nerve.common.sql.statement import sql
from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import JsonValue
from nerve.protocol.content import Message
from support.brain_cell import QUICK, Cell, brain_cell, opened, rows, write
from support.waiting import soon, until

MIB = 1024 * 1024
JOURNAL = sql("select position, entries, state, codec from journal order by position")
OBJECTS = sql("select state from object order by digest")


class Remembering:
    """Appends what the input asks for, and says how much it has kept so far."""

    definition = Definition(agent="agent", version="1", harness="remembering", state_version="1")
    flags = HarnessFlags()
    bindings: Mapping[str, ToolBinding] = {}
    nature: Mapping[str, JsonValue] = {}

    async def advance(self, frame: Frame, facts: Facts, host: HarnessHost) -> Finished:
        before = sum(len(str(entry)) for entry in frame.entries)
        letter, _, size = facts.input.text.partition(" ")
        kept = Checkpoint(entries=[letter * int(size)], state={"before": before})
        return Finished(checkpoint=kept, output=Message.assistant(f"had {before}"))

    def settle(self, frame: Frame, results: Sequence[ToolOutcome]) -> Checkpoint:
        return Checkpoint(entries=[], state=frame.state)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[FileObjects]:
    objects = FileObjects(tmp_path / "objects", bytes_max=256 * MIB)
    await objects.open()
    yield objects
    await objects.close()


def stored(tmp_path: Path) -> list[Path]:
    return [
        path
        for path in (tmp_path / "objects" / "acme").rglob("*")
        if path.is_file() and path.parent.name != "%new"
    ]


@pytest.mark.capability("G3.3")
@pytest.mark.report("U54")
@pytest.mark.timeout(120)
async def test_a_checkpoint_of_any_size_leaves_a_small_row_and_another_host_goes_on_from_it(
    cell: Cell, store: FileObjects, tmp_path: Path
) -> None:
    first = await cell.runtime(Remembering(), objects=store)
    thread = await (await opened(first)).open_thread("t")
    for number, size in enumerate([10, 100 * MIB, 10]):
        turn = await thread.submit(f"r{number}", f"a {size}")
        await soon(turn.result(), 60)
    journal = await rows(first, JOURNAL)
    assert [row["codec"] for row in journal] == ["plain", "object", "plain"]
    assert max(len(row["entries"]) + len(row["state"]) for row in journal) < 1024
    assert [path.stat().st_size > 100 * MIB for path in stored(tmp_path)] == [True]
    await first.close()
    other = await cell.runtime(Remembering(), objects=store)
    again = await (await opened(other)).open_thread("t")
    turn = await again.submit("r9", "b 1")
    assert (await soon(turn.result(), 60)).text == f"had {100 * MIB + 20}"


@pytest.mark.rule(15)
async def test_a_thread_whose_checkpoint_is_lost_waits_visibly_and_goes_on_when_it_is_back(
    store: FileObjects, tmp_path: Path
) -> None:
    clock = VirtualClock()
    async with brain_cell(tmp_path / "state", clock) as cell:
        runtime = await cell.runtime(Remembering(), objects=store, warm_frames=0)
        thread = await (await opened(runtime)).open_thread("t")
        await soon((await thread.submit("r1", f"a {MIB}")).result())
        (path,) = stored(tmp_path)
        body = path.read_bytes()
        path.chmod(0o600)
        path.unlink()
        turn = await thread.submit("r2", "b 1")
        while "cannot be read" not in (why := " ".join((await turn.status()).why)):
            await clock.advance(0.05)
        assert "the checkpoint 1 of acme/s-1/t" in why
        path.write_bytes(body)
        await clock.advance(SET_BACK_DELAY_MS / 1000)
        ended = asyncio.ensure_future(turn.result())
        await cell.advance_until(ended.done)
        assert ended.result().text == f"had {MIB}"


@pytest.mark.rule(15)
async def test_what_is_no_reference_is_a_broken_chain_and_no_defect(
    store: FileObjects, tmp_path: Path, cell: Cell
) -> None:
    runtime = await cell.runtime(Remembering(), objects=store, warm_frames=0)
    thread = await (await opened(runtime)).open_thread("t")
    await soon((await thread.submit("r1", f"a {MIB}")).result())
    write(runtime, "update journal set entries = x'7b7d'")
    turn = await thread.submit("r2", "b 1")
    async with asyncio.timeout(20):
        while "checkpoint chain of acme/s-1/t breaks" not in " ".join((await turn.status()).why):
            await asyncio.sleep(0.02)


@pytest.mark.capability("G3.3")
async def test_objects_of_checkpoints_are_kept_with_their_thread_and_collected_after_it(
    cell: Cell, store: FileObjects, tmp_path: Path
) -> None:
    quick = replace(QUICK, object_grace_seconds=0.1)
    runtime = await cell.runtime(Remembering(), objects=store, settings=quick)
    thread = await (await opened(runtime)).open_thread("t")
    await soon((await thread.submit("r1", f"a {MIB}")).result())
    (kept,) = stored(tmp_path)
    assert runtime.execution is not None and runtime.execution.large is not None
    # What was put for a Step that was never committed is nobody's.
    stray = [b"x" * MIB, b"{}"]
    await runtime.execution.large.lay_down(stray, scope="acme/s-1/t/journal", owner="acme/s-1/t")
    await until(lambda: len(stored(tmp_path)) == 1, "the stray one is collected", 30)
    assert stored(tmp_path) == [kept]
    write(runtime, "delete from journal")
    await until(lambda: not kept.exists(), "the other one follows its Thread's journal", 30)
    async with asyncio.timeout(20):
        while await rows(runtime, OBJECTS):
            await asyncio.sleep(0.02)
