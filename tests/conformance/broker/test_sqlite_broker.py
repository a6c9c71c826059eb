"""The queue file among processes: kills, wiped files, frozen writers and full disks lose no confirm."""

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.broker import SqliteBroker, sqlite_file
from nerve.common.clock import settle
from nerve.common.faults import InjectedFault
from nerve.common.wakeups import Doorbell, LocalWakeups
from nerve.protocol.errors import BrokerUnavailable, DiskFull, SchemaTooNew
from support.queues import Opened, stored, take
from support.waiting import running, soon, until

PREFIX = "common.broker.sqlite."


async def test_a_live_consumer_keeps_what_it_holds(opened: Opened) -> None:
    first, second = await opened.open(), await opened.open()
    holder = first.consume("t", "g", credit=lambda: 1)
    await soon(first.publish("t", [b"held", b"free"]))
    [held] = await soon(holder.receive())
    assert [b"free"] == await take(second, 1)
    await until(lambda: stored(opened.directory) == [b"held"], "the free one was acknowledged")
    holder.ack([held])
    await until(lambda: stored(opened.directory) == [], "the held one was acknowledged")


@pytest.mark.rule(13)
@pytest.mark.parametrize("damage", ["remove", "remove log", "remove index", "replace", "garbage"])
async def test_a_wiped_file_is_made_anew_and_unconfirmed_messages_are_written_again(
    opened: Opened, damage: str
) -> None:
    sender, receiver = await opened.open(), await opened.open(poll_seconds=0.02)
    await soon(sender.publish("t", [b"before"]))
    harm(opened.directory, damage)
    async with running(receive_until(receiver, b"after")) as receiving:
        await soon(sender.publish("t", [b"after"]))
        await soon(receiving)
        await soon(receiver.publish("t", [b"back"]))
        assert b"back" in await take(sender, 1)


def harm(directory: Path, damage: str) -> None:
    main, log, index = (directory / f"broker.db{suffix}" for suffix in ("", "-wal", "-shm"))
    match damage:
        case "remove":
            for path in (main, log, index):
                path.unlink()
        case "remove log":
            log.unlink()
        case "remove index":
            index.unlink()
        case "replace":
            shutil.copy(main, directory / "copy.db")
            (directory / "copy.db").replace(main)
        case _:
            main.unlink()
            main.write_bytes(b"this is no database" * 1000)


async def receive_until(broker: SqliteBroker, last: bytes) -> None:
    consumer = broker.consume("t", "g", credit=lambda: 1000)
    seen: list[bytes] = []
    while last not in seen:
        deliveries = await consumer.receive()
        seen += [delivery.body for delivery in deliveries]
        consumer.ack(deliveries)
    await consumer.close()


async def test_a_damaged_file_is_set_aside_not_deleted(opened: Opened) -> None:
    opened.directory.joinpath("broker.db").write_bytes(b"this is no database" * 1000)
    broker = await opened.open()
    await soon(broker.publish("t", [b"a"]))
    assert [b"a"] == await take(broker, 1)
    assert 1 == len(list(opened.directory.glob("broker.db.damaged-*")))


async def test_an_acknowledgement_of_a_former_file_touches_nothing_in_the_new_one(
    opened: Opened,
) -> None:
    broker = await opened.open(poll_seconds=0.02)
    consumer = broker.consume("t", "g", credit=lambda: 1000)
    await soon(broker.publish("t", [b"old"]))
    old = await soon(consumer.receive())
    harm(opened.directory, "remove")
    await soon(broker.publish("t", [b"new"]))
    consumer.ack(old)
    consumer.nack(old)
    new = await soon(consumer.receive())
    assert [b"new"] == [delivery.body for delivery in new]


@pytest.mark.law(9)
async def test_without_hints_a_scan_finds_what_was_published(opened: Opened) -> None:
    sender = await opened.open(hints=False)
    receiver = await opened.open(hints=False, poll_seconds=0.05)
    async with running(take(receiver, 1)) as receiving:
        await settle()
        await soon(sender.publish("t", [b"a"]))
        assert [b"a"] == await soon(receiving)


@pytest.mark.rule(6)
async def test_a_frozen_writer_costs_a_deadline_and_never_the_event_loop(opened: Opened) -> None:
    broker = await opened.open(publish_seconds=0.3)
    with closing(sqlite3.connect(opened.directory / "broker.db", isolation_level=None)) as frozen:
        frozen.execute("BEGIN IMMEDIATE")
        ticks: list[int] = []

        async def ticking() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0.001)

        async with running(ticking()):
            with pytest.raises(BrokerUnavailable, match="this process holds its write lock itself"):
                await soon(broker.publish("t", [b"a"]))
        assert len(ticks) > 20
        frozen.execute("ROLLBACK")
    await soon(broker.publish("t", [b"b"]))
    assert b"b" in await take(broker, 1)


async def test_a_full_queue_refuses_and_works_again_once_there_is_room(opened: Opened) -> None:
    broker = await opened.open(bytes_max=200_000)
    kept = 0
    with pytest.raises(DiskFull, match="Free space"):
        for kept in range(100):
            await soon(broker.publish("t", [b"%03d" % kept + b"x" * 10_000]))
    received = await take(broker, kept)
    assert list(range(kept)) == [int(body[:3]) for body in received]
    await soon(broker.publish("t", [b"again"]))
    assert b"again" in await take(broker, 1)


@pytest.mark.rule(7)
async def test_a_claim_that_an_error_orphaned_is_released(opened: Opened) -> None:
    broker = await opened.open()
    consumer = broker.consume("t", "g", credit=lambda: 1000)
    await soon(broker.publish("t", [b"a"]))
    faults.arm(f"{PREFIX}after_claim_commit=raise@1")
    with pytest.raises(InjectedFault):
        await soon(consumer.receive())
    assert [b"a"] == [delivery.body for delivery in await soon(consumer.receive())]


@pytest.mark.law(1)
async def test_an_error_before_the_commit_leaves_nothing_and_is_told(opened: Opened) -> None:
    broker = await opened.open()
    faults.arm(f"{PREFIX}before_publish_commit=raise@1")
    with pytest.raises(InjectedFault):
        await soon(broker.publish("t", [b"a"]))
    assert [] == stored(opened.directory)
    await soon(broker.publish("t", [b"a"]))
    assert [b"a"] == stored(opened.directory)


async def test_publishes_that_queue_up_share_a_commit(opened: Opened) -> None:
    commits: list[float] = []
    bell = Doorbell.open(opened.directory)
    broker = SqliteBroker(opened.directory, bell, observe=lambda _, took: commits.append(took))
    await broker.open()
    await soon(asyncio.gather(*(broker.publish("t", [b"%d" % n]) for n in range(50))))
    assert len(commits) <= 3
    await broker.close()
    bell.close()


async def test_what_is_acknowledged_during_a_commit_is_written_by_the_next(tmp_path: Path) -> None:
    acknowledge: list[Callable[[], None]] = []
    broker = SqliteBroker(
        tmp_path,
        LocalWakeups(),
        observe=lambda _, __: [act() for act in acknowledge],
        ack_seconds=0,
    )
    await broker.open()
    consumer = broker.consume("t", "g", credit=lambda: 1000)
    await soon(broker.publish("t", [b"a"]))
    held = await soon(consumer.receive())
    acknowledge.append(lambda: consumer.ack(held))
    await soon(broker.publish("t", [b"b"]))
    await until(lambda: stored(tmp_path) == [b"b"], "the acknowledgement was written")
    await broker.close()


async def test_a_publish_is_seen_before_its_flush_and_confirmed_after_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = SqliteBroker(opened.directory, LocalWakeups(), quick_flush_seconds=0)
    await broker.open()
    consumer = broker.consume("t", "g", credit=lambda: 1)
    held, flushes = threading.Event(), 0

    def flush(descriptor: int) -> None:
        nonlocal flushes
        flushes += 1
        assert os.readlink(f"/proc/self/fd/{descriptor}").endswith("broker.db-wal")
        assert held.wait(10)

    monkeypatch.setattr(sqlite_file, "_sync", flush)
    async with running(broker.publish("t", [b"a"])) as publishing:
        (delivery,) = await soon(consumer.receive())
        assert delivery.body == b"a" and not publishing.done()
        held.set()
        await soon(publishing)
    assert flushes == 1
    await broker.close()


async def test_a_newer_layout_is_refused(opened: Opened) -> None:
    with closing(sqlite3.connect(opened.directory / "broker.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(SchemaTooNew, match="layout 99"):
        await opened.open()


async def test_depths_tell_what_waits(opened: Opened) -> None:
    broker = await opened.open()
    await soon(broker.publish("t", [b"a\nb", b"c"]))
    await soon(broker.publish("u", [b"d"]))
    consumer = broker.consume("t", "g", credit=lambda: 2)
    await soon(consumer.receive())
    depths = [(one.topic, one.envelopes, one.bodies, one.claimed) for one in broker.depths()]
    assert [("t", 3, 2, 1), ("u", 1, 1, 0)] == depths


async def test_closing_leaves_no_lock_and_no_claim(tmp_path: Path) -> None:
    broker = SqliteBroker(tmp_path, LocalWakeups())
    await broker.open()
    consumer = broker.consume("t", "g", credit=lambda: 10)
    await soon(broker.publish("t", [b"a"]))
    await soon(consumer.receive())
    await broker.close()
    assert ["broker.lock"] == os.listdir(tmp_path / "locks")
    with closing(sqlite3.connect(tmp_path / "broker.db")) as connection:
        assert (0,) == connection.execute("SELECT count(*) FROM claim").fetchone()


async def test_idle_looks_take_no_write_lock(opened: Opened) -> None:
    broker = await opened.open(poll_seconds=0.005)
    looks = 0

    def credit() -> int:
        nonlocal looks
        looks += 1
        return 1

    with closing(sqlite3.connect(opened.directory / "broker.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with running(broker.consume("t", "g", credit=credit).receive()) as receiving:
            await until(lambda: looks > 5, "the consumer looked several times")
            assert not receiving.done()
        writer.execute("ROLLBACK")


def test_every_point_of_the_queue_file_is_registered() -> None:
    names: Callable[[str], list[str]] = lambda step: [  # noqa: E731
        f"{PREFIX}{moment}_{step}_commit" for moment in ("after", "before")
    ]
    expected = {name for step in ("publish", "claim", "ack", "release") for name in names(step)}
    assert expected <= set(faults.names("common"))
