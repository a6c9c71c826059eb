"""The object store of one machine: a file for each object below one folder.

A body is written to a temporary file, flushed, and linked to its name, which fails where the name exists;
then the folder is flushed. A reader therefore finds a whole object or none.
"""

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, final

from nerve.common import faults
from nerve.common.clock import Clock, SystemClock
from nerve.common.objects.port import OBJECT_BYTES_MAX, reference, segments
from nerve.protocol.canonical import digest
from nerve.protocol.errors import (
    Damaged,
    DiskFull,
    NerveError,
    NotFound,
    TooLarge,
    Unavailable,
)
from nerve.protocol.objects import ObjectRef

V = TypeVar("V")

STALE_SECONDS = 3600

# "%" is in no scope, so that these folders never meet one.
_TEMPORARY = "%new"
_FAN_OUT = "%"

faults.register(
    "common",
    [
        "common.objects.files.before_put",
        "common.objects.files.before_link",
        "common.objects.files.before_folder_flush",
        "common.objects.files.after_put",
    ],
)


@final
class FileObjects:
    def __init__(
        self,
        folder: Path | str,
        *,
        bytes_max: int = OBJECT_BYTES_MAX,
        threads: int = 4,
        clock: Clock | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._bytes_max = bytes_max
        self._threads = threads
        self._clock = clock or SystemClock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def shown(self) -> str:
        return f"file://{self._folder}"

    async def open(self) -> None:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="nerve-objects")
        await self._run(self._prepare)

    async def put(self, scope: str, body: bytes) -> ObjectRef:
        ref = reference(scope, body)
        path = self._path(ref)
        if len(body) > self._bytes_max:
            raise TooLarge(
                f"an object of {len(body):,} bytes is over the limit of {self._bytes_max:,}",
                where=scope,
                next_step="Split it, or raise NERVE_OBJECT_BYTES_MAX",
            )
        await faults.apoint("common.objects.files.before_put")
        await self._run(lambda: self._put(path, ref, body))
        await faults.apoint("common.objects.files.after_put")
        return ref

    async def get(self, ref: ObjectRef, *, patient: bool = True) -> bytes:
        path = self._path(ref)
        return await self._run(lambda: self._get(path, ref))

    async def exists(self, ref: ObjectRef) -> bool:
        path = self._path(ref)
        return await self._run(lambda: self._size(path) == ref.bytes)

    async def delete(self, ref: ObjectRef) -> None:
        path = self._path(ref)
        await self._run(lambda: self._delete(path))

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    async def _run(self, call: Callable[[], V]) -> V:
        if self._pool is None:
            raise self._unreachable("it is not open")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._translating, call)

    def _translating(self, call: Callable[[], V]) -> V:
        try:
            return call()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(
                    "the disk that holds the objects is full",
                    where=str(self._folder),
                    next_step="Free space; nothing acknowledged is lost",
                ) from error
            raise self._unreachable(str(error)) from error

    def _prepare(self) -> None:
        temporary = self._folder / _TEMPORARY
        temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        oldest = self._clock.now_ms() / 1000 - STALE_SECONDS
        for left in temporary.iterdir():
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < oldest:
                    left.unlink()

    def _put(self, path: Path, ref: ObjectRef, body: bytes) -> None:
        self._make_folder(path.parent)
        temporary = self._folder / _TEMPORARY / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            _write(temporary, body)
            faults.point("common.objects.files.before_link")
            try:
                os.link(temporary, path)
            except FileExistsError:
                self._heal(temporary, path, ref)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        faults.point("common.objects.files.before_folder_flush")
        # Also where the object was there: its writer may have died before this flush.
        _flush_folder(path.parent)

    def _heal(self, temporary: Path, path: Path, ref: ObjectRef) -> None:
        """The name stands for exactly these bytes, so a file with others can only be damaged."""
        try:
            self._get(path, ref)
        except (Damaged, NotFound):
            temporary.replace(path)

    def _get(self, path: Path, ref: ObjectRef) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            self._check_reachable()
            raise NotFound(
                "the object is not in the store",
                where=f"{ref.scope}/{ref.digest}",
                next_step="Check that both sides use the same object store",
            ) from None
        with os.fdopen(descriptor, "rb") as file:
            body = file.read(ref.bytes + 1)
        if len(body) != ref.bytes or digest(body) != ref.digest:
            raise Damaged(
                "the stored object does not have the content it is named by",
                where=f"{ref.scope}/{ref.digest}",
                next_step="Restore the file from a backup, or let its writer put it again",
            )
        return body

    def _size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            self._check_reachable()
            return None

    def _delete(self, path: Path) -> None:
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            self._check_reachable()
            return
        _flush_folder(path.parent)

    def _check_reachable(self) -> None:
        """Without its own folder the store is gone, as when a disk is not mounted."""
        if not (self._folder / _TEMPORARY).is_dir():
            raise self._unreachable("its folder is gone")

    def _make_folder(self, folder: Path) -> None:
        self._check_reachable()
        missing = [folder] if not folder.is_dir() else []
        while missing and not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for new in reversed(missing):
            new.mkdir(mode=0o700, exist_ok=True)
            _flush_folder(new.parent)

    def _path(self, ref: ObjectRef) -> Path:
        name = ref.digest.removeprefix("sha256:")
        return self._folder.joinpath(*segments(ref.scope), f"{_FAN_OUT}{name[:2]}", name)

    def _unreachable(self, why: str) -> NerveError:
        return Unavailable(
            f"the object store does not answer: {why}",
            where=str(self._folder),
            next_step="Check that the folder is there and may be written",
        )


def _write(path: Path, body: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
