"""Threads of synchronous tools, what tools print, and where their context is found."""

import asyncio
import sys
import threading
import time

import pytest

from nerve.common.clock import SystemClock
from nerve.hands import tool_context
from nerve.hands.tools import FunctionTools, printing
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import WrongState
from nerve.protocol.execution import ExecutionState
from nerve.protocol.signature import ToolContext
from support.hands_tools import FakeRun, prepared
from support.hands_world import Asker
from support.waiting import soon

S = ExecutionState


async def test_abandoned_threads_do_not_take_the_room_of_others() -> None:
    release = threading.Event()

    def stuck() -> str:
        release.wait(20)
        return "late"

    catalog = Catalog()
    catalog.tool(name="t", timeout_seconds=0.02)(stuck)
    tools = FunctionTools(catalog, route="hands", clock=SystemClock(), threads=1, result_bytes=1000)
    asker = Asker(catalog)
    for _ in range(3):
        run = FakeRun(command=asker.call("t"), binding=catalog.get("t"))
        assert (await soon(tools.run(run))).move.state is S.UNKNOWN
    release.set()
    tools.close()


async def test_what_a_tool_prints_becomes_its_output_and_nobody_elses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def soft() -> str:
        print("soft")
        return "x"

    def hard() -> str:
        print("hard", file=sys.stderr)
        return "x"

    printing.install()
    try:
        for tool, line in ((soft, b"soft"), (hard, b"hard")):
            tools, run = prepared(tool)
            await soon(tools.run(run))
            assert b"".join(run.written) == line + b"\n"
            tools.close()
        print("host")
    finally:
        printing.uninstall()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("host\n", "")


async def test_the_context_is_found_inside_a_tool_and_nowhere_else() -> None:
    async def tool() -> str:
        return tool_context().execution

    tools, run = prepared(tool)
    end = await soon(tools.run(run))
    assert end.result.value == run.command.execution
    with pytest.raises(WrongState):
        tool_context()


async def test_threads_end_when_the_host_closes() -> None:
    def tool() -> str:
        return threading.current_thread().name

    tools, run = prepared(tool)
    name = (await soon(tools.run(run))).result.value
    tools.close()
    deadline = time.monotonic() + 10
    while any(thread.name == name for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread ended"
        await asyncio.sleep(0.001)


async def test_a_synchronous_tool_runs_in_a_thread_and_can_write() -> None:
    def tool(context: ToolContext) -> str:
        context.write("from a thread")  # type: ignore[unused-coroutine]
        return threading.current_thread().name

    tools, run = prepared(tool)
    end = await soon(tools.run(run))
    assert str(end.result.value).startswith("nerve-tool-")
    assert run.written == [b"from a thread"]
    tools.close()
