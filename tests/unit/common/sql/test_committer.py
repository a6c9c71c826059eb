"""Group commit: one unit in, one verdict out, whatever becomes of the others."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Generator
from math import ceil
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.clock import SystemClock
from nerve.common.sql import SqliteLedger, open_sqlite
from nerve.common.sql.committer import BATCH_UNITS_MAX
from nerve.protocol.errors import Conflict, LedgerUnavailable, NerveError, WrongLedger
from support.item_ledger import SCHEMA, Item, count, ids, item_ledger, look, put
from support.waiting import running, soon, until


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncGenerator[SqliteLedger, None]:
    async with item_ledger(tmp_path / "test.db") as opened:
        yield opened


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    faults.disarm()


@pytest.mark.law(1)
async def test_what_is_queued_together_shares_one_commit(ledger: SqliteLedger) -> None:
    futures = [ledger.submit(put, Item(id=f"{n:03}")) for n in range(200)]
    assert await asyncio.gather(*futures) == [f"{n:03}" for n in range(200)]
    assert ledger.commits == ceil(200 / BATCH_UNITS_MAX)
    assert await ledger.read(count) == 200


async def test_a_unit_that_refuses_before_writing_costs_the_others_nothing(
    ledger: SqliteLedger,
) -> None:
    futures = [ledger.submit(put, Item(id=f"{n:03}", bad=n == 5)) for n in range(8)]
    verdicts = await asyncio.gather(*futures, return_exceptions=True)
    assert [n for n, verdict in enumerate(verdicts) if isinstance(verdict, Conflict)] == [5]
    assert await ledger.read(count) == 7
    assert ledger.commits == 1


@pytest.mark.parametrize("bad", [Item(id="x", worse=True), Item(id="001")], ids=["raises", "clash"])
async def test_one_bad_unit_harms_nobody(ledger: SqliteLedger, bad: Item) -> None:
    said: list[str] = []
    units = [Item(id=f"{n:03}", said=said) for n in range(20)]
    units.insert(10, bad)
    futures = [ledger.submit(put, unit) for unit in units]
    verdicts = await asyncio.gather(*futures, return_exceptions=True)
    assert [n for n, verdict in enumerate(verdicts) if isinstance(verdict, NerveError)] == [10]
    assert await ledger.read(count) == 20
    assert said == [f"{n:03}" for n in range(20)]


async def test_callbacks_run_in_the_order_of_their_units_and_only_after_the_commit(
    ledger: SqliteLedger,
) -> None:
    said: list[str] = []
    seen: list[int] = []
    faults.hook("sql.after_commit", lambda: seen.append(len(said)))
    futures = [ledger.submit(put, Item(id=f"{n:03}", said=said)) for n in range(8)]
    await asyncio.gather(*futures)
    assert said == [f"{n:03}" for n in range(8)]
    assert seen == [0]


async def test_a_unit_that_failed_promises_nothing(ledger: SqliteLedger) -> None:
    said: list[str] = []
    faults.arm("test.put.before_commit=raise@*")
    with pytest.raises(faults.InjectedFault):
        await ledger.commit(put, Item(id="a", said=said))
    faults.disarm()
    assert said == []
    assert await ledger.read(count) == 0


async def test_a_batch_that_writes_nothing_makes_no_commit(ledger: SqliteLedger) -> None:
    assert await ledger.commit(look, "nothing") is False
    assert ledger.commits == 0


@pytest.mark.rule(8)
@pytest.mark.law(1)
async def test_an_answer_lost_after_the_commit_changes_no_verdict(ledger: SqliteLedger) -> None:
    faults.arm("sql.in_doubt=raise@1")
    futures = [ledger.submit(put, Item(id=f"{n:03}")) for n in range(8)]
    assert await asyncio.gather(*futures) == [f"{n:03}" for n in range(8)]
    assert await ledger.read(count) == 8


@pytest.mark.rule(8)
async def test_a_commit_that_did_not_happen_is_not_taken_for_one(ledger: SqliteLedger) -> None:
    await ledger.commit(put, Item(id="first"))
    faults.arm("sql.before_commit=raise@1")
    futures = [ledger.submit(put, Item(id=f"{n:03}")) for n in range(8)]
    verdicts = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(verdict, faults.InjectedFault) for verdict in verdicts)
    assert await ledger.read(ids) == ["first"]
    await ledger.commit(put, Item(id="again"))
    assert await ledger.read(ids) == ["again", "first"]


@pytest.mark.rule(8)
async def test_each_writer_reads_back_its_own_batch(tmp_path: Path) -> None:
    """Another process commits between our commit and our look: its number is not ours."""
    async with (
        item_ledger(tmp_path / "t.db") as one,
        item_ledger(tmp_path / "t.db") as other,
    ):
        for n in range(5):
            await other.commit(put, Item(id=f"other{n}"))
        faults.arm("sql.before_commit=raise@1")
        with pytest.raises(faults.InjectedFault):
            await one.commit(put, Item(id="mine"))
        faults.arm("sql.in_doubt=raise@1")
        assert await one.commit(put, Item(id="mine")) == "mine"
        assert await one.read(count) == 6


async def test_a_cancelled_caller_drops_its_answer_and_not_its_unit(ledger: SqliteLedger) -> None:
    caller = asyncio.ensure_future(ledger.commit(put, Item(id="kept")))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await ledger.commit(put, Item(id="next")) == "next"
    assert await ledger.read(ids) == ["kept", "next"]


async def test_a_lock_held_by_another_process_is_waited_for(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    holder = sqlite3.connect(tmp_path / "test.db", isolation_level=None, timeout=0)
    holder.execute("begin immediate")
    async with running(ledger.commit(put, Item(id="late"))) as writing:
        await until(lambda: ledger.blocked_seconds > 0.05, "the committer notices the lock")
        assert not writing.done()
        assert await ledger.read(count) == 0
        holder.execute("commit")
        assert await soon(writing) == "late"
    assert ledger.blocked_seconds == 0
    holder.close()


async def test_a_lock_that_is_never_freed_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with item_ledger(path, lock_wait_seconds=0.05) as ledger:
        holder = sqlite3.connect(path, isolation_level=None, timeout=0)
        holder.execute("begin immediate")
        with pytest.raises(LedgerUnavailable, match="holds its write lock"):
            await ledger.commit(put, Item(id="never"))
        holder.execute("commit")
        holder.close()
        assert await ledger.commit(put, Item(id="now")) == "now"
        assert await ledger.read(ids) == ["now"]


async def test_deferred_units_ride_on_the_next_commit(ledger: SqliteLedger) -> None:
    ledger.defer(put, Item(id="b"))
    await ledger.commit(put, Item(id="a"))
    assert await ledger.read(ids) == ["a", "b"]
    assert ledger.commits == 1


async def test_a_deferred_unit_alone_makes_a_commit_soon(ledger: SqliteLedger) -> None:
    ledger.defer(put, Item(id="alone"))
    await until(lambda: ledger.commits == 1, "the deferred unit is committed")


@pytest.mark.report("U92")
async def test_close_during_traffic_answers_everybody(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    acknowledged: set[str] = set()

    async def one(ledger: SqliteLedger, id: str) -> None:
        try:
            acknowledged.add(await ledger.commit(put, Item(id=id)))
            ledger.defer(look, id)
        except LedgerUnavailable:
            pass

    async with item_ledger(path):
        for round in range(200):
            ledger = await open_sqlite(path, SCHEMA, clock=SystemClock(), create=False)
            work = [asyncio.ensure_future(one(ledger, f"{round}.{n}")) for n in range(6)]
            for _ in range(round % 5):
                await asyncio.sleep(0)
            await ledger.close()
            await soon(asyncio.gather(*work))
            with pytest.raises(LedgerUnavailable, match="closed"):
                await ledger.commit(look, "after")
            with pytest.raises(LedgerUnavailable):
                await ledger.read(count)
    async with item_ledger(path, create=False) as again:
        assert set(await again.read(ids)) == acknowledged


@pytest.mark.rule(25)
async def test_a_file_replaced_under_a_running_host_stops_admission(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    await ledger.commit(put, Item(id="before"))
    path = tmp_path / "test.db"
    path.rename(tmp_path / "moved.db")
    async with item_ledger(path):
        with pytest.raises(WrongLedger, match="removed or replaced"):
            await ledger.commit(put, Item(id="lost"))
        with pytest.raises(WrongLedger):
            await ledger.commit(look, "before")


@pytest.mark.rule(25)
async def test_not_even_a_repeat_is_acknowledged_from_a_removed_file(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    (tmp_path / "test.db").unlink()
    with pytest.raises(WrongLedger):
        await ledger.commit(look, "anything")


async def test_a_law_that_waits_for_the_world_is_refused(ledger: SqliteLedger) -> None:
    from nerve.common.sql import Tx, law

    @law("test.sleepy", keys=lambda unit: ())
    async def sleepy(tx: Tx, unit: int) -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaited something"):
        await ledger.commit(sleepy, 1)


async def test_a_torn_down_loop_waits_for_the_helper_thread(tmp_path: Path) -> None:
    """Cancelling everything, as asyncio.run does at its end, leaves no half-used connection."""
    path = tmp_path / "t.db"
    async with item_ledger(path, lock_wait_seconds=0.3) as ledger:
        holder = sqlite3.connect(path, isolation_level=None, timeout=0)
        holder.execute("begin immediate")
        work = ledger.submit(put, Item(id="a"))
        await until(lambda: ledger.blocked_seconds > 0, "the committer waits in its thread")
        (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "committer"]
        task.cancel()
        with pytest.raises((asyncio.CancelledError, LedgerUnavailable)):
            await soon(work)
        holder.execute("rollback")
        holder.close()
        assert await ledger.commit(put, Item(id="b")) == "b"
