"""The holder of a SQLite write lock is named, so that a frozen writer can be dealt with."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nerve.common import writelock
from support.waiting import until

pytestmark = [
    pytest.mark.rule(6),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the locks of others"),
]
CHILD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (a)")
        yield path


@contextmanager
def writing(database: Path) -> Generator[int]:
    """Another process inside a write transaction."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert "holding\n" == process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def test_nobody_holds_an_idle_file(database: Path) -> None:
    assert writelock.holder(database) is None
    assert "nobody" in writelock.described(database)


def test_the_writing_process_is_named(database: Path) -> None:
    with writing(database) as pid:
        assert pid == writelock.holder(database)
        assert f"process {pid} (python" in writelock.described(database)
    assert writelock.holder(database) is None


async def test_a_frozen_writer_is_told_to_be_frozen(database: Path) -> None:
    with writing(database) as pid:
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: writelock.is_stopped(pid), "the writer stopped")
        assert "which is frozen," in writelock.described(database)


def test_looking_drops_none_of_our_own_locks(database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        assert os.getpid() == writelock.holder(database)
        assert os.getpid() == writelock.holder(database)
        assert "this process" in writelock.described(database)


def test_a_waiter_and_another_file_are_not_the_holder(database: Path, tmp_path: Path) -> None:
    inode = os.stat(f"{database}-shm").st_ino
    listing = tmp_path / "locks"
    listing.write_text(
        f"1: POSIX  ADVISORY  WRITE 11 fe:00:{inode + 1} 120 120\n"
        f"2: -> POSIX  ADVISORY  WRITE 12 fe:00:{inode} 120 120\n"
        f"3: POSIX  ADVISORY  READ 13 fe:00:{inode} 124 124\n"
        f"4: POSIX  ADVISORY  WRITE 14 fe:00:{inode} 120 120\n"
    )
    assert 14 == writelock.holder(database, kernel_list=listing)


def test_where_nothing_can_be_seen_nobody_is_named(tmp_path: Path) -> None:
    assert writelock.holder(tmp_path / "absent.db") is None
