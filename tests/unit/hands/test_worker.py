"""A whole worker: starting, losing, draining and closing, on a real ledger."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nerve.common import faults
from nerve.common.broker import MemoryBroker
from nerve.common.settings import Settings
from nerve.hands import WorkerRuntime
from nerve.hands.ledger.finish import finish
from nerve.hands.port import Ended, Run, ended
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import DiskFull, Unavailable
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState
from nerve.protocol.signature import ToolContext
from support.hands_place import Bench, place
from support.waiting import soon, until

S = ExecutionState


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    faults.disarm()


@pytest.mark.capability("D15.1")
@pytest.mark.report("U22", "U111", "U112", "U116")
async def test_a_drain_starts_nothing_new_lets_tools_end_and_empties_the_outbox(
    tmp_path: Path,
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), slots=1) as here:
        running, waiting = await here.start("hold"), await here.start("act")
        await until(lambda: bench.effects == [running], "the tool was entered")
        drained = asyncio.ensure_future(here.worker.drain())
        await until(lambda: here.worker.running == 1 and not drained.done(), "it waits")
        assert not here.worker.host.lost.is_set() and here.worker.host.alive()
        bench.gate.set()
        assert await soon(drained) is True
        assert (await here.told.end(running)).state is S.SUCCEEDED
        assert await here.count("outbox where host is not null") in (0, 1)
        assert (await here.row(waiting))["state"] == S.ADMITTED
        assert bench.effects == [running]


@pytest.mark.report("U01", "U23")
async def test_what_waited_at_a_restart_runs_once_afterwards(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), slots=1) as here:
        await here.start("hold")
        waiting = [await here.start("act") for _ in range(20)]
        bench.gate.set()
        here.worker.assembly.engine.accepting = False
    done = set(bench.effects)
    async with place(tmp_path, bench.catalog()) as here:
        left = [each for each in waiting if each not in done]
        assert left
        await here.told.ends(left)
        assert sorted(each for each in bench.effects if each in waiting) == sorted(waiting)


@pytest.mark.capability("D15.2", "D15.3", "D8.1")
@pytest.mark.law(4)
async def test_a_forced_close_is_quick_cancels_nothing_and_leaves_an_honest_unknown(
    tmp_path: Path,
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), drain=False) as here:
        soft, hard = await here.start("hold"), await here.start("block")
        await until(lambda: len(bench.effects) == 2, "both tools were entered")
        tasks = [run.task for run in here.worker.assembly.engine.running.values()]
        await soon(here.worker.close(), 5)
        assert not any(task is not None and task.done() for task in tasks)
        for execution in (soft, hard):
            update = await here.told.end(execution)
            assert (update.state, update.effect) == (S.UNKNOWN, Effect.UNCONFIRMED)
    bench.gate.set()
    bench.stuck.set()
    await asyncio.wait([task for task in tasks if task is not None])
    async with place(tmp_path, bench.catalog()) as here:
        assert (await here.row(soft))["state"] == S.UNKNOWN
        assert len(bench.effects) == 2


@pytest.mark.capability("D15.4")
async def test_a_callback_may_close_the_host_it_runs_on(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), drain=False) as here:
        bench.worker = here.worker
        leaving = await here.start("leave")
        update = await here.told.end(leaving)
        assert (update.state, update.code) == (S.UNKNOWN, "host_lost")


@pytest.mark.rule(7)
async def test_a_start_that_was_committed_and_not_launched_is_found_and_run_once(
    tmp_path: Path,
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        with faults.armed("hands.intake.admitted=raise"):
            with pytest.raises(faults.InjectedFault):
                await here.start("act")
        [execution] = [f"{here.asker.turn}.x1"]
        assert (await here.row(execution))["state"] == S.STARTED
        update = await here.told.end(execution)
        assert (update.state, bench.effects) == (S.SUCCEEDED, [execution])


@pytest.mark.rule(7)
async def test_a_task_that_crashed_before_its_tool_is_run_again(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        faults.arm("hands.engine.before_tool=raise")
        execution = await here.start("act")
        assert (await here.told.end(execution)).state is S.SUCCEEDED
        assert bench.effects == [execution]


@pytest.mark.rule(7)
@pytest.mark.law(4)
async def test_a_task_that_crashed_after_its_tool_is_given_up_and_never_run_again(
    tmp_path: Path,
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        faults.arm("hands.engine.after_tool=raise")
        execution = await here.start("act")
        update = await here.told.end(execution)
        assert (update.state, bench.effects) == (S.UNKNOWN, [execution])
        assert here.worker.assembly.engine.free == here.worker.settings.hands_slots


@pytest.mark.rule(5)
async def test_a_host_that_was_released_while_frozen_does_not_enter_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        old = here.worker.host
        faults.hook("hands.engine.started", lambda: monkeypatch.setattr(old, "_deadline", 0.0))
        execution = await here.start("act")
        assert await here.release(old.id)
        await here.thaw(old)
        update = await here.told.end(execution)
        assert (update.state, bench.effects) == (S.UNKNOWN, [])


@pytest.mark.rule(1)
@pytest.mark.rule(5)
async def test_a_released_host_becomes_another_incarnation_and_goes_on(tmp_path: Path) -> None:
    bench = Bench()
    settings = Settings(
        scan_seconds=0.05, sweep_seconds=0.05, heartbeat_seconds=0.05, lease_seconds=5
    )
    async with place(tmp_path, bench.catalog(), settings=settings) as here:
        old = here.worker.host
        held = await here.start("hold")
        await until(lambda: bench.effects == [held], "the tool was entered")
        assert await here.release(old.id)
        await until(lambda: here.worker.host is not old, "it registered anew")
        assert (await here.told.end(held)).state is S.UNKNOWN
        bench.gate.set()
        execution = await here.start("act")
        assert (await here.told.end(execution)).host == here.worker.host.id
        await until(lambda: here.worker.running == 0, "the old task ended")
        assert await here.count("observation") == 1


@pytest.mark.report("U19")
async def test_a_tool_that_blocks_the_event_loop_keeps_its_lease(tmp_path: Path) -> None:
    bench = Bench()
    catalog = bench.catalog()
    wedge = threading.Event()

    @catalog.tool
    async def freeze(context: ToolContext) -> str:
        bench.effects.append(context.execution)
        wedge.wait(1.5)
        return "thawed"

    settings = Settings(
        scan_seconds=0.05, sweep_seconds=0.05, heartbeat_seconds=0.1, lease_seconds=0.5
    )
    async with place(tmp_path, catalog, settings=settings) as here:
        execution = await here.start("freeze")
        update = await here.told.end(execution)
        assert (update.state, bench.effects) == (S.SUCCEEDED, [execution])


async def test_a_full_disk_keeps_the_result_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        ledger, commit, refused = here.worker.ledger, here.worker.ledger.commit, [3]

        async def full(law: Any, unit: Any) -> Any:
            if law is finish and refused[0]:
                refused[0] -= 1
                raise DiskFull("no room")
            return await commit(law, unit)

        monkeypatch.setattr(ledger, "commit", full)
        execution = await here.start("act")
        assert (await here.told.end(execution)).state is S.SUCCEEDED
        assert (bench.effects, refused) == ([execution], [0])


@pytest.mark.report("U51")
@pytest.mark.rule(20)
async def test_a_result_that_no_envelope_can_carry_is_replaced_and_the_effect_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:

        async def huge(run: Run) -> Ended:
            result = ExecutionResult(metadata={"log": "x" * 2_000_000})
            return ended(S.SUCCEEDED, Effect.COMPLETED, result)

        monkeypatch.setattr(here.worker.assembly.tools, "run", huge)
        update = await here.told.end(await here.start("act"))
        assert (update.state, update.effect) == (S.SUCCEEDED, Effect.COMPLETED)
        assert update.result is not None and update.result.placeholder == "result_too_large"


@pytest.mark.capability("D9.1", "D9.3")
async def test_origin_and_idempotency_key_survive_the_loss_of_a_host(tmp_path: Path) -> None:
    catalog = Catalog()
    seen: list[tuple[int, str, str]] = []

    @catalog.tool(idempotent_start=True)
    async def act(context: ToolContext) -> int:
        seen.append((context.attempt, context.origin.step, context.idempotency_key))
        if context.attempt == 1:
            await asyncio.Event().wait()
        return context.attempt

    async with place(tmp_path, catalog) as here:
        execution = await here.start("act")
        await until(lambda: seen, "the tool was entered")
        old = here.worker.host
        assert await here.release(old.id)
        await here.thaw(old)
        update = await here.told.end(execution)
        assert (update.state, update.attempt) == (S.SUCCEEDED, 2)
        assert [each[0] for each in seen] == [1, 2]
        assert seen[0][1:] == seen[1][1:] == (f"{here.asker.turn}.r1.s1", execution)


async def test_a_drain_that_runs_out_of_time_says_so_and_closing_follows(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog(), drain=False) as here:
        execution = await here.start("hold")
        await until(lambda: bench.effects, "the tool was entered")
        assert await here.worker.drain(0.01) is False
        await soon(here.worker.close(), 5)
        assert (await here.told.end(execution)).state is S.UNKNOWN
    bench.gate.set()


async def test_a_draining_worker_leaves_new_commands_with_their_sender(tmp_path: Path) -> None:
    bench = Bench()
    async with place(tmp_path, bench.catalog()) as here:
        assert await here.worker.drain() is True
        with pytest.raises(Unavailable, match="draining"):
            await here.start("act")
        assert await here.count("execution") == 0


def ours() -> set[int | None]:
    """Threads of this product that are alive."""
    return {each.ident for each in threading.enumerate() if each.name.startswith("nerve-")}


async def test_a_worker_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    bench = Bench()
    broker = MemoryBroker()

    def refused(*arguments: object, **options: object) -> Any:
        raise RuntimeError("no such topic")

    broker.consume = refused  # type: ignore[method-assign]
    before = ours()
    worker = WorkerRuntime(tmp_path / "state", bench.catalog(), broker=broker)
    with pytest.raises(RuntimeError, match="no such topic"):
        await worker.start()
    await until(lambda: ours() <= before, "its threads ended")
    async with place(tmp_path, bench.catalog()) as here:
        assert (await here.told.end(await here.start("act"))).state is S.SUCCEEDED


@pytest.mark.rule(20)
@pytest.mark.rule(21)
async def test_the_late_end_of_an_abandoned_thread_is_kept_as_an_observation(
    tmp_path: Path,
) -> None:
    catalog, release = Catalog(), threading.Event()

    @catalog.tool(timeout_seconds=0.05)
    def slow() -> str:
        release.wait(20)
        return "late"

    async with place(tmp_path, catalog) as here:
        execution = await here.start("slow")
        assert (await here.told.end(execution)).state is S.UNKNOWN
        release.set()
        store = here.worker.executions
        async with asyncio.timeout(10):
            while not (seen := await store.observations(execution)):
                await asyncio.sleep(0.01)
        assert [(each["source"], each["state"]) for each in seen] == [("late_thread", S.SUCCEEDED)]
        assert (await here.row(execution))["state"] == S.UNKNOWN
