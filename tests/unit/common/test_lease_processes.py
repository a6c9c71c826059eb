"""Hosts as real processes: killed, frozen, thawed, and frozen inside a write transaction."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from nerve.common import writelock
from nerve.common.lease import Hosts
from nerve.common.liveness import LockSight, lock_sight
from nerve.common.sql import SqliteLedger, Tx, law, sql, sqlite
from nerve.common.sql.frozen import FrozenWriter
from support.host_child import host_child, hosts
from support.item_ledger import Item, ids, item_ledger, put
from support.waiting import soon, until

pytestmark = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc")
STATE = sql("select state from host where id = :id")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncGenerator[SqliteLedger, None]:
    async with item_ledger(tmp_path / "t.db") as opened:
        yield opened


async def state(ledger: SqliteLedger, id: str) -> str:
    async def query(tx: Tx) -> str:
        row = await tx.one(STATE, id=id)
        assert row is not None
        return str(row["state"])

    return await ledger.read(query)


async def released(observer: Hosts, ledger: SqliteLedger, id: str, seconds: float) -> float:
    """Sweep until the host is released; how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while await state(ledger, id) != "RELEASED":
        assert loop.time() - began < seconds, "it was not released"
        await observer.run_once()
        await asyncio.sleep(0.02)
    return loop.time() - began


@pytest.mark.rule(3)
async def test_a_killed_host_is_released_at_once(ledger: SqliteLedger, tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    observer = hosts(ledger, locks, lease=60.0, heartbeat=1.0)
    async with host_child(ledger.path, locks, lease=60.0, heartbeat=1.0) as child:
        await observer.run_once()
        assert await state(ledger, child.id) == "LIVE"
        child.process.kill()
        await child.process.wait()
        assert await released(observer, ledger, child.id, 5.0) < 1.0
        assert not (locks / f"{child.id}.lock").exists()


@pytest.mark.rule(3)
async def test_a_removed_lock_file_kills_nobody(ledger: SqliteLedger, tmp_path: Path) -> None:
    """It beats on and is left alone; killed, it is known to be gone without its lock."""
    locks = tmp_path / "locks"
    observer = hosts(ledger, locks, lease=0.6, heartbeat=0.1)
    async with host_child(ledger.path, locks, lease=0.6, heartbeat=0.1) as child:
        (locks / f"{child.id}.lock").unlink()
        for _ in range(40):
            await observer.run_once()
            await asyncio.sleep(0.02)
        assert await state(ledger, child.id) == "LIVE"
        assert lock_sight(locks / f"{child.id}.lock") is LockSight.UNSEEN
        child.process.kill()
        await child.process.wait()
        assert await released(observer, ledger, child.id, 5.0) < 0.5


@pytest.mark.rule(3)
@pytest.mark.rule(5)
async def test_a_frozen_host_is_released_after_its_lease_and_learns_it_when_it_thaws(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    locks = tmp_path / "locks"
    observer = hosts(ledger, locks, lease=1.0, heartbeat=0.1)
    async with host_child(ledger.path, locks, lease=1.0, heartbeat=0.1) as child:
        assert await child.ask("alive") == "alive True"
        await observer.run_once()
        os.kill(child.pid, signal.SIGSTOP)
        took = await released(observer, ledger, child.id, 10.0)
        assert 0.8 < took < 3.0
        child.tell("alive")
        os.kill(child.pid, signal.SIGCONT)
        # It must not believe in itself for the moment before it hears that it was released.
        answers = {await child.line(), await child.line()}
        assert answers == {"alive False", "lost"}
        child.tell("close")
        assert await child.line() == "bye"


@pytest.mark.rule(4)
async def test_a_short_freeze_changes_nothing(ledger: SqliteLedger, tmp_path: Path) -> None:
    locks = tmp_path / "locks"
    observer = hosts(ledger, locks, lease=2.0, heartbeat=0.1)
    async with host_child(ledger.path, locks, lease=2.0, heartbeat=0.1) as child:
        os.kill(child.pid, signal.SIGSTOP)
        for _ in range(30):
            await observer.run_once()
            await asyncio.sleep(0.02)
        os.kill(child.pid, signal.SIGCONT)
        for _ in range(30):
            await observer.run_once()
            await asyncio.sleep(0.02)
        assert await child.ask("alive") == "alive True"
        assert await child.ask("put a") == "put a"


@pytest.mark.rule(6)
async def test_a_host_frozen_inside_a_write_transaction_is_ended_after_its_lease(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    """It holds the file: whoever cannot write ends exactly that process, and takes over."""
    locks = tmp_path / "locks"
    observer = hosts(ledger, locks, lease=1.5, heartbeat=0.2)
    stop = "test.put.before_commit=stop@1"
    async with host_child(ledger.path, locks, lease=1.5, heartbeat=0.2, faults=stop) as child:
        await observer.register({})
        child.tell("put frozen")
        await until(lambda: writelock.is_stopped(child.pid), "it stops inside its transaction")
        assert writelock.holder(ledger.path) == child.pid
        writing = {view.id: view.writing for view in await observer.live()}
        assert writing[child.id]
        assert sum(writing.values()) == 1
        mine = asyncio.ensure_future(ledger.commit(put, Item(id="mine")))
        await until(lambda: ledger.blocked_seconds > 1.0, "nobody else can write")
        named = ledger.blocked_by()
        assert named is not None
        assert f"process {child.pid}" in named
        assert "frozen" in named
        assert await soon(mine) == "mine"
        assert await child.process.wait() == -signal.SIGKILL
        await released(observer, ledger, child.id, 5.0)
        assert await ledger.read(ids) == ["mine"]
        host = observer.host
        assert host is not None
        await until(host.alive, "the observer beats again")
        assert not host.lost.is_set()
    await observer.close()


@pytest.mark.rule(6)
async def test_who_is_no_host_of_the_ledger_is_named_and_left_alone(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    locks = tmp_path / "locks"
    stop = "test.put.before_commit=stop@1"
    async with host_child(ledger.path, locks, lease=0.6, heartbeat=0.1, faults=stop) as child:
        strip = sql("update host set pid = 1 where id = :id")

        @law("test.strip", keys=lambda unit: ())
        async def unregister(tx: Tx, unit: str) -> None:
            await tx.run(strip, id=unit)

        await ledger.commit(unregister, child.id)
        observer = hosts(ledger, locks, lease=0.6, heartbeat=0.1)
        host = await observer.register({})
        child.tell("put frozen")
        await until(lambda: writelock.is_stopped(child.pid), "it stops inside its transaction")
        await until(lambda: not host.alive(), "nobody can beat any more")
        await until(lambda: host.beat_late_seconds > 3.0, "the lease is long over")
        assert child.process.returncode is None
        os.kill(child.pid, signal.SIGCONT)
        await until(host.alive, "it beats again")
        assert not host.lost.is_set()
        assert await child.line() == "put frozen"
    await observer.close()


@pytest.mark.rule(6)
async def test_a_busy_writer_that_commits_is_no_frozen_one(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    """Each commit of the holder begins its time anew, however often it is found with the lock."""
    locks = tmp_path / "locks"
    async with host_child(ledger.path, locks, lease=0.5, heartbeat=0.1) as child:
        watch = FrozenWriter(ledger.path)
        connection = sqlite.connect(ledger.path)
        for n in range(30):
            assert await child.ask(f"put {n}") == f"put {n}"
            os.kill(child.pid, signal.SIGSTOP)
            watch.look(connection)
            os.kill(child.pid, signal.SIGCONT)
        assert child.process.returncode is None
        connection.close()
