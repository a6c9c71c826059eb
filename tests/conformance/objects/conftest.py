"""Every object store behind the port; a new one adds a line to `STORES`."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nerve.common.objects import FileObjects, ObjectStore
from nerve.protocol.objects import ObjectRef


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


STORES: dict[str, Opener] = {"files": files}


@pytest.fixture(params=STORES, ids=str)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened
