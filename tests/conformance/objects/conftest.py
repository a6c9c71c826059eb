"""Every object store behind the port; a new one adds a line to `STORES`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nerve.common.objects import FileObjects, ObjectStore
from nerve.common.objects.s3 import S3Objects
from nerve.protocol.objects import ObjectRef
from support.buckets import Gate, bucket, overwrite


@dataclass(frozen=True, slots=True)
class Bench:
    """Two clients of one store, and ways to harm it as no client can."""

    store: ObjectStore
    other: ObjectStore
    spoil: Callable[[ObjectRef, bytes], None]
    cut_off: Callable[[], object]


Opener = Callable[[Path], AbstractAsyncContextManager[Bench]]


@asynccontextmanager
async def files(directory: Path) -> AsyncGenerator[Bench]:
    folder = directory / "objects"

    def spoil(ref: ObjectRef, body: bytes) -> None:
        [path] = folder.rglob(ref.digest.removeprefix("sha256:"))
        path.chmod(0o600)
        path.write_bytes(body)

    store, other = FileObjects(folder, bytes_max=100_000), FileObjects(folder, bytes_max=100_000)
    await store.open()
    await other.open()
    try:
        yield Bench(store, other, spoil, lambda: folder.rename(directory / "unmounted"))
    finally:
        await store.close()
        await other.close()


@asynccontextmanager
async def s3(directory: Path) -> AsyncGenerator[Bench]:
    settings = await asyncio.to_thread(bucket)
    gate = Gate(settings)
    await gate.open()
    through = replace(settings, endpoint=gate.url, stale_seconds=0.5, connect_seconds=1.0)
    store, other = (S3Objects(through, bytes_max=100_000) for _ in range(2))

    def spoil(ref: ObjectRef, body: bytes) -> None:
        overwrite(settings, ref, body)

    await store.open()
    await other.open()
    try:
        yield Bench(store, other, spoil, gate.cut_off)
    finally:
        await store.close()
        await other.close()
        await gate.close()


STORES: dict[str, Opener] = {"files": files, "s3": s3}


# The first test of a run may have to start the server.
MARKS = {"s3": [pytest.mark.external, pytest.mark.timeout(180)]}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in STORES], ids=str)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened
