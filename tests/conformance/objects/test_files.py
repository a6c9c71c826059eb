"""The folder of objects: flushed before it is told, whole or absent after a kill, tidy."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.clock import VirtualClock
from nerve.common.objects import FileObjects
from nerve.protocol.errors import DiskFull
from support.waiting import soon

POINTS = ("before_put", "before_link", "before_folder_flush", "after_put")
CHILD = """
import asyncio, sys
from nerve.common.objects import FileObjects

async def main(folder):
    store = FileObjects(folder)
    await store.open()
    await store.put("acme", b"body")
    print("acknowledged", flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def unarmed() -> Iterator[None]:
    faults.disarm()
    yield
    faults.disarm()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileObjects]:
    objects = FileObjects(tmp_path / "objects")
    await objects.open()
    yield objects
    await objects.close()


@pytest.mark.law(1)
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_writer_left_a_whole_object_or_none(tmp_path: Path, point: str) -> None:
    folder = tmp_path / "objects"
    environment = {**os.environ, "NERVE_FAULTS": f"common.objects.files.{point}=kill"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (-signal.SIGKILL, "") == (child.returncode, child.stdout)
    stored = [path.read_bytes() for path in folder.rglob("*") if len(path.name) == 64]
    assert stored in ([], [b"body"])
    store = FileObjects(folder)
    await store.open()
    ref = await soon(store.put("acme", b"body"))
    assert b"body" == await soon(store.get(ref))
    await store.close()


async def test_the_body_is_flushed_before_it_has_a_name_and_the_folder_before_it_is_told(
    store: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    flush, link = os.fsync, os.link

    def flushed(descriptor: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "body"
        steps.append(f"flush {kind}")
        flush(descriptor)

    def linked(source: str, target: str) -> None:
        steps.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "link", linked)
    await soon(store.put("acme", b"body"))
    last_link = steps.index("link")
    assert "flush body" == steps[last_link - 1]
    assert "flush folder" == steps[-1]


async def test_a_full_disk_is_told_as_such(
    store: FileObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="nothing acknowledged is lost"):
        await soon(store.put("acme", b"body"))


async def test_files_of_killed_writers_are_removed_once_they_are_old(tmp_path: Path) -> None:
    clock = VirtualClock(now_ms=10_000_000_000)
    temporary = tmp_path / "%new"
    temporary.mkdir()
    for name, age_seconds in (("old", 7200), ("fresh", 60)):
        (temporary / name).write_bytes(b"x")
        moment = clock.now_ms() / 1000 - age_seconds
        os.utime(temporary / name, (moment, moment))
    store = FileObjects(tmp_path, clock=clock)
    await store.open()
    await store.close()
    assert ["fresh"] == os.listdir(temporary)


async def test_every_point_of_the_store_is_reached_by_a_put(store: FileObjects) -> None:
    with faults.armed("*=record"):
        await soon(store.put("acme", b"body"))
        reached = set(faults.hits())
    assert {f"common.objects.files.{point}" for point in POINTS} == reached
