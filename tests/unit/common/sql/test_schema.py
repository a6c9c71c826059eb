"""A ledger file at the door: made, upgraded, used, or refused with what to do."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from nerve.brain.ledger.schema import SCHEMA as BRAIN
from nerve.common.clock import SystemClock
from nerve.common.sql import Schema, open_sqlite
from nerve.common.sql.migrate import ddl, prepare, run_migrations
from nerve.protocol.errors import Damaged, NerveError, SchemaTooNew, WrongLedger
from support.item_ledger import SCHEMA, Item, ids, item_ledger, put


def shape(connection: sqlite3.Connection) -> dict[tuple[str, str], list[str]]:
    """What stands in the file, with the lines of each definition in any order."""
    rows = connection.execute("select type, name, coalesce(sql, '') from sqlite_master")
    return {
        (kind, name): sorted(line.strip().rstrip(",") for line in text.splitlines())
        for kind, name, text in rows
        if "alembic_version" not in name
    }


def columns(connection: sqlite3.Connection) -> dict[str, list[str]]:
    names = [
        row[0] for row in connection.execute("select name from sqlite_master where type='table'")
    ]
    return {
        name: [row[1] for row in connection.execute(f"pragma table_info({name})")]
        for name in names
        if "alembic_version" not in name
    }


def test_the_migrated_brain_ledger_equals_a_fresh_one() -> None:
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    for statement in ddl(BRAIN):
        fresh.execute(statement)
    migrated = sqlite3.connect(":memory:", isolation_level=None)
    migrated.execute("begin immediate")
    run_migrations(migrated, BRAIN)
    migrated.execute("commit")
    assert shape(migrated) == shape(fresh)
    assert columns(migrated) == columns(fresh)
    fresh.close()
    migrated.close()


def test_a_migration_is_all_or_nothing() -> None:
    half = sqlite3.connect(":memory:", isolation_level=None)
    half.execute("begin immediate")
    run_migrations(half, BRAIN)
    half.execute("rollback")
    assert shape(half) == {}
    half.close()


@pytest.fixture
def older(tmp_path: Path) -> tuple[Path, Schema]:
    """A ledger of version 1, and a build of version 2 with a script that adds a table."""
    versions = tmp_path / "scripts" / "versions"
    versions.mkdir(parents=True)
    for number, before, act in (
        ("0001", "None", "pass"),
        ("0002", '"0001"', 'op.execute("create table extra (id text primary key)")'),
    ):
        (versions / f"{number}_step.py").write_text(
            f"from alembic import op\nrevision = {number!r}\ndown_revision = {before}\n"
            f"branch_labels = None\ndepends_on = None\n\n\ndef upgrade():\n    {act}\n"
        )
    newer = replace(SCHEMA, version=2, migrations=tmp_path / "scripts")
    return tmp_path / "test.db", newer


async def test_an_older_ledger_is_brought_up_and_keeps_what_it_holds(
    older: tuple[Path, Schema],
) -> None:
    path, newer = older
    async with item_ledger(path) as ledger:
        await ledger.commit(put, Item(id="old"))
        identity = ledger.identity
    ledger = await open_sqlite(path, newer, clock=SystemClock(), create=False)
    assert ledger.identity == identity
    assert await ledger.read(ids) == ["old"]
    await ledger.close()
    with sqlite3.connect(path) as file:
        assert file.execute("select count(*) from extra").fetchone() == (0,)
        assert file.execute("select value from meta where key = 'version'").fetchone() == ("2",)
    file.close()


async def test_a_newer_ledger_is_used_where_it_admits_this_build_and_refused_where_not(
    older: tuple[Path, Schema],
) -> None:
    path, newer = older
    prepare(path, SCHEMA, create=True, now=1)
    prepare(path, newer, create=False, now=1)
    async with item_ledger(path, create=False) as ledger:
        await ledger.commit(put, Item(id="still"))
    with sqlite3.connect(path) as file:
        file.execute("update meta set value = '2' where key = 'oldest_writer'")
    file.close()
    with pytest.raises(SchemaTooNew, match="install the newer nerve"):
        prepare(path, SCHEMA, create=False, now=1)


def test_a_missing_ledger_is_not_made_in_silence(tmp_path: Path) -> None:
    with pytest.raises(WrongLedger, match="start a host there first"):
        prepare(tmp_path / "none.db", SCHEMA, create=False, now=1)
    assert not (tmp_path / "none.db").exists()


def test_an_empty_file_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "t.db").touch()
    with pytest.raises(WrongLedger, match="holds no ledger"):
        prepare(tmp_path / "t.db", SCHEMA, create=False, now=1)


def test_a_ledger_of_another_room_is_refused(tmp_path: Path) -> None:
    prepare(tmp_path / "t.db", SCHEMA, create=True, now=1)
    with pytest.raises(WrongLedger, match="ledger of test, not of brain"):
        prepare(tmp_path / "t.db", BRAIN, create=True, now=1)


def _noise(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 200)


def _torn(path: Path) -> None:
    prepare(path, SCHEMA, create=True, now=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def _headless(path: Path) -> None:
    prepare(path, SCHEMA, create=True, now=1)
    with sqlite3.connect(path) as file:
        file.execute("delete from meta where key = 'epoch'")
    file.close()


@pytest.mark.parametrize("damage", [_noise, _torn, _headless])
def test_a_damaged_ledger_says_what_to_do(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "t.db"
    assert callable(damage)
    damage(path)
    with pytest.raises(Damaged, match="restore it from a backup"):
        prepare(path, SCHEMA, create=False, now=1)


async def test_damage_found_later_is_named_too(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with item_ledger(path) as ledger:
        for n in range(50):
            await ledger.commit(put, Item(id=f"{n:03}", body=b"x" * 3000))
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with pytest.raises(NerveError) as caught:
        async with item_ledger(path, create=False) as ledger:
            await ledger.commit(put, Item(id="more"))
    assert isinstance(caught.value, Damaged)


def test_two_hosts_that_make_one_ledger_at_once_make_one(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    path = tmp_path / "t.db"
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(prepare, path, SCHEMA, create=True, now=1) for _ in range(8)]
        identities = {each.result().id for each in work}
    assert len(identities) == 1
