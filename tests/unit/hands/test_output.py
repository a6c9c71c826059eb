"""Output of tools: any bytes, in pages, bounded with a gap, one story an attempt."""

import asyncio
from pathlib import Path

import pytest

from nerve.hands.ledger.pages import Page
from nerve.hands.loopwatch import LoopWatch
from nerve.hands.metrics import HandsMetrics
from nerve.hands.output import Output
from nerve.protocol.catalog import Catalog
from nerve.protocol.execution import ExecutionState
from nerve.protocol.output import PAGE_BYTES_MAX, Assembly, OutputSeal, PageKind
from nerve.protocol.signature import ToolContext
from support.hands_place import Place, place
from support.waiting import until

S = ExecutionState
EXECUTION = "t00000000000000000000000000.x1"


def written(output: Output, *chunks: bytes) -> tuple[list[Page], OutputSeal | None]:
    for chunk in chunks:
        output.write(chunk)
    pages, seal = output.close()
    return list(pages), seal


def make(*, attempt: int = 1, bytes_max: int = 1000) -> tuple[Output, list[int]]:
    woken: list[int] = []
    output = Output(EXECUTION, attempt, wake=lambda: woken.append(1), bytes_max=bytes_max)
    return output, woken


def test_what_was_written_is_kept_in_order_and_sealed() -> None:
    output, woken = make()
    pages, seal = written(output, b"one ", b"two")
    assert [(page.kind, page.start, page.data) for page in pages] == [
        (PageKind.DATA, 0, b"one two")
    ]
    assert seal is not None and (seal.total_bytes, seal.gap_bytes) == (7, 0)
    assert woken == [1]


def test_a_silent_tool_has_no_pages_and_no_seal() -> None:
    output, _ = make()
    assert written(output) == ([], None)


@pytest.mark.capability("D5.3")
def test_what_is_too_much_is_an_explicit_gap() -> None:
    output, _ = make(bytes_max=10)
    pages, seal = written(output, b"x" * 8, b"y" * 8, b"z" * 4)
    assert [(page.kind, page.start, page.length) for page in pages] == [
        (PageKind.DATA, 0, 10),
        (PageKind.GAP, 10, 10),
    ]
    assert seal is not None and (seal.total_bytes, seal.gap_bytes) == (20, 10)


def test_another_attempt_begins_with_a_reset() -> None:
    output, _ = make(attempt=2)
    pages, _ = written(output, b"again")
    assert [page.kind for page in pages] == [PageKind.RESET, PageKind.DATA]


def test_large_output_is_cut_into_pages_and_nothing_counts_after_the_end() -> None:
    output, _ = make(bytes_max=10 * PAGE_BYTES_MAX)
    pages, seal = written(output, b"x" * (2 * PAGE_BYTES_MAX + 1))
    output.write(b"late")
    assert [page.length for page in pages] == [PAGE_BYTES_MAX, PAGE_BYTES_MAX, 1]
    assert seal is not None and output.take() == []


async def read(here: Place, execution: str, *, limit: int = 60_000) -> tuple[bytes, Assembly]:
    """Everything from offset 0 on, as a reader would fetch it."""
    assembly, data, offset = Assembly(execution), b"", 0
    for count in range(1, 1000):
        question = here.asker.read_output(execution, offset=offset, limit=limit)
        await here.executor.control([question])
        answer = await here.told.output(execution, count)
        for page in answer.pages:
            assembly.add(page)
            data += page.bytes
        offset = answer.next_offset
        if answer.seal is not None:
            assembly.check(answer.seal)
            return data, assembly
    raise AssertionError("the output was never sealed")


@pytest.mark.capability("D5.1")
@pytest.mark.report("U60")
async def test_binary_output_in_odd_chunks_comes_back_bit_exact(tmp_path: Path) -> None:
    catalog = Catalog()
    sent = bytes(range(256)) * 1001

    @catalog.tool
    async def bits(context: ToolContext) -> str:
        for start in range(0, len(sent), 7919):
            await context.write(sent[start : start + 7919])
            await asyncio.sleep(0)
        return "done"

    async with place(tmp_path, catalog) as here:
        execution = await here.start("bits")
        await here.told.end(execution)
        data, _ = await read(here, execution)
        assert data == sent


@pytest.mark.capability("D5.1")
async def test_output_can_be_read_while_the_tool_runs(tmp_path: Path) -> None:
    catalog = Catalog()
    gate = asyncio.Event()

    @catalog.tool
    async def talk(context: ToolContext) -> str:
        await context.write("first ")
        await gate.wait()
        await context.write("second")
        return "done"

    async with place(tmp_path, catalog) as here:
        execution = await here.start("talk")

        async def some() -> bool:
            await here.executor.control([here.asker.read_output(execution)])
            return any(each.pages for each in here.told.outputs[execution])

        async with asyncio.timeout(10):
            while not await some():
                await asyncio.sleep(0.01)
        first = next(each for each in here.told.outputs[execution] if each.pages)
        assert (first.pages[0].bytes, first.seal) == (b"first ", None)
        gate.set()
        await here.told.end(execution)
        here.told.outputs.clear()
        assert (await read(here, execution))[0] == b"first second"


@pytest.mark.capability("D5.3")
async def test_a_tool_that_prints_megabytes_succeeds_with_a_gap(tmp_path: Path) -> None:
    catalog = Catalog()

    @catalog.tool
    def flood() -> str:
        for _ in range(200):
            print("x" * 100_000)
        return "done"

    async with place(tmp_path, catalog) as here:
        update = await here.told.end(await here.start("flood"))
        assert update.state is S.SUCCEEDED
        assert update.result is not None and update.result.output is not None
        seal = update.result.output
        assert (seal.total_bytes, seal.total_bytes - seal.gap_bytes) == (20_000_200, 8 * 1024**2)


async def test_control_characters_are_read_in_pages_that_fit_an_envelope(tmp_path: Path) -> None:
    catalog = Catalog()

    @catalog.tool
    async def bells(context: ToolContext) -> str:
        await context.write(b"\x07" * 400_000)
        return "done"

    async with place(tmp_path, catalog) as here:
        execution = await here.start("bells")
        await here.told.end(execution)
        data, _ = await read(here, execution, limit=512 * 1024)
        assert data == b"\x07" * 400_000


async def test_output_of_what_does_not_exist_is_answered_as_absent(tmp_path: Path) -> None:
    catalog = Catalog()

    @catalog.tool
    async def act() -> str:
        return "x"

    async with place(tmp_path, catalog) as here:
        execution = here.asker.call("act").execution
        await here.executor.control([here.asker.read_output(execution)])
        assert (await here.told.absence(execution)).absence == "never_seen"


async def test_a_blocked_loop_is_named_with_the_task_that_blocks_it() -> None:
    metrics = HandsMetrics("hands")
    watch = LoopWatch(metrics, seconds=0.02)
    seen: list[str | None] = []

    async def wedge() -> None:
        done = asyncio.get_running_loop().time() + 10
        while watch.blocked_by is None and asyncio.get_running_loop().time() < done:
            pass
        seen.append(watch.blocked_by)

    watch.start()
    await asyncio.create_task(wedge(), name="execution:x1")
    await until(lambda: watch.blocked_by is None, "it gave way again")
    watch.close()
    assert seen == ["execution:x1"]
    assert metrics.blocked.value("hands") == 1
