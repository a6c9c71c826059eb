"""Units in, verdicts out: what is queued shares one transaction, and each unit gets its own answer.

A batch that raises is rolled back and its units run one by one, so that one bad unit harms nobody.
After an error of COMMIT itself nobody knows whether the batch is durable; then its number, written
by the batch itself into the row of this writer, is read back before anything runs again.
"""

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, cast

from nerve.common import faults
from nerve.common.sql import sqlite
from nerve.common.sql.law import Law
from nerve.common.sql.pump import pump
from nerve.protocol.errors import LedgerUnavailable, NerveError, WrongLedger

U = TypeVar("U")
V = TypeVar("V")

BATCH_UNITS_MAX = 256
DEFER_SECONDS = 0.25
QUICK_COMMIT_SECONDS = 0.002

faults.register("sql", ["sql.begin", "sql.before_commit", "sql.after_commit", "sql.in_doubt"])


@dataclass(slots=True)
class _Entry:
    law: Law[Any, Any]
    unit: Any
    future: asyncio.Future[Any] | None
    verdict: Any = None
    error: BaseException | None = None


class Committer:
    """The only writer of one SQLite file in this process."""

    def __init__(
        self,
        path: Path,
        writer: str,
        *,
        observe: Callable[[int, float], None] | None = None,
        lock_wait_seconds: float = sqlite.BUSY_SECONDS,
    ) -> None:
        self._path = path
        self._writer = writer
        self._observe = observe
        self._lock_wait_ms = int(lock_wait_seconds * 1000)
        # Another process may be recovering or closing the file right now: that is waited for.
        self._connection = sqlite.connect(path, busy_seconds=sqlite.BUSY_SECONDS)
        self._connection.execute("pragma busy_timeout = 0")
        self._identity = sqlite.file_identity(path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nerve-commit")
        self._queue: deque[_Entry] = deque()
        self._deferred: list[_Entry] = []
        self._running: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._batch = 0
        self._commit_seconds = 0.0
        self._refusal: NerveError | None = None
        self._blocked_since: float | None = None
        self.commits = 0
        self.units = 0

    @property
    def blocked_seconds(self) -> float:
        """For how long the write lock could not be had; 0 while nobody is waiting for it."""
        since = self._blocked_since
        return 0.0 if since is None else perf_counter() - since

    def submit(self, law: Law[U, V], unit: U) -> asyncio.Future[V]:
        """Queue a unit; the future has its verdict after the commit.

        The unit runs to its end whatever becomes of the one who asked: only its answer is dropped.
        """
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        if self._refusal is not None:
            future.set_exception(self._refusal)
            return future
        self._queue.append(_Entry(law, unit, future))
        self._wake()
        return future

    def defer(self, law: Law[U, Any], unit: U) -> None:
        """Queue a unit that may be lost; it makes no commit of its own before its time."""
        if self._refusal is not None:
            return
        self._deferred.append(_Entry(law, unit, None))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEFER_SECONDS, self._wake)

    def _wake(self) -> None:
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="committer")

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._settle(batch)
                await asyncio.sleep(0)
        finally:
            self._running = None

    def _take(self) -> list[_Entry]:
        count = min(len(self._queue), BATCH_UNITS_MAX)
        batch = [self._queue.popleft() for _ in range(count)]
        batch += self._deferred
        self._deferred = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return batch

    async def _settle(self, batch: list[_Entry]) -> None:
        try:
            if not await self._together(batch):
                for entry in batch:
                    await self._alone(entry)
        except Exception as error:
            for entry in batch:
                entry.error = entry.error or error
        except BaseException:
            for entry in batch:
                if entry.future is not None:
                    entry.future.cancel()
            raise
        self._resolve(batch)

    async def _alone(self, entry: _Entry) -> None:
        try:
            await self._together([entry])
        except Exception as error:
            entry.error = error

    async def _together(self, batch: list[_Entry]) -> bool:
        """Commit `batch` in one transaction; False where a law raised and nothing was written."""
        callbacks: list[Callable[[], None]] = []
        began = perf_counter()
        await self._begin()
        before = self._connection.total_changes
        if not self._apply(batch, callbacks):
            self._rollback()
            return False
        if self._connection.total_changes == before:
            # All refused, found nothing or were repeats: there is nothing to make durable.
            self._rollback()
            self._check_file()
        else:
            await self._write()
            self._check_file()
            self._count(batch, perf_counter() - began)
            faults.point("sql.after_commit")
        self.units += len(batch)
        for entry in batch:
            faults.point(entry.law.after_commit)
        for callback in callbacks:
            callback()
        return True

    async def _write(self) -> None:
        self._batch += 1
        try:
            self._mark()
            faults.point("sql.before_commit")
            await self._commit()
            faults.point("sql.in_doubt")
        except Exception as error:
            self._rollback()
            if not self._committed(error):
                raise self._translated(error) from error

    async def _begin(self) -> None:
        faults.point("sql.begin")
        try:
            self._connection.execute(sqlite.BEGIN)
            return
        except sqlite3.Error as error:
            if not sqlite.is_busy(error):
                raise self._translated(error) from error
        self._blocked_since = perf_counter()
        try:
            await self._in_thread(self._begin_waiting)
        finally:
            self._blocked_since = None

    def _begin_waiting(self) -> None:
        self._connection.execute(f"pragma busy_timeout = {self._lock_wait_ms}")
        try:
            self._connection.execute(sqlite.BEGIN)
        except sqlite3.Error as error:
            raise self._translated(error) from error
        finally:
            self._connection.execute("pragma busy_timeout = 0")

    async def _in_thread(self, call: Callable[[], object]) -> None:
        """Run `call` in the helper thread. Even a cancelled wait lets it end first: until then the
        connection is in its hands."""
        work = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    def _apply(self, batch: list[_Entry], callbacks: list[Callable[[], None]]) -> bool:
        """Run the laws. One that raises before it wrote anything has its answer; one that raises
        after it wrote spoils the transaction for all of them."""
        connection = self._connection
        transaction = sqlite.SqliteTx(connection, callbacks)
        for entry in batch:
            written, promised = connection.total_changes, len(callbacks)
            entry.error = None
            try:
                entry.verdict = pump(entry.law.apply(transaction, entry.unit))
                faults.point(entry.law.before_commit)
            except sqlite3.Error as error:
                entry.error = self._translated(error)
                return False
            except Exception as error:
                entry.error = error
                if connection.total_changes != written:
                    return False
                del callbacks[promised:]
        return True

    def _mark(self) -> None:
        self._connection.execute(
            sqlite.WRITE_BATCH.text, {"id": self._writer, "batch": self._batch}
        )

    async def _commit(self) -> None:
        began = perf_counter()
        if self._commit_seconds < QUICK_COMMIT_SECONDS:
            self._connection.execute(sqlite.COMMIT)
        else:
            await self._in_thread(lambda: self._connection.execute(sqlite.COMMIT))
        self._commit_seconds += (perf_counter() - began - self._commit_seconds) / 8

    def _committed(self, error: Exception) -> bool:
        """Whether the batch that failed at its end is durable after all."""
        try:
            row = self._connection.execute(sqlite.READ_BATCH.text, {"id": self._writer}).fetchone()
        except sqlite3.Error as second:
            raise self._translated(second) from error
        return row is not None and cast(int, row["batch"]) == self._batch

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(sqlite.ROLLBACK)

    def _check_file(self) -> None:
        if sqlite.file_identity(self._path) == self._identity:
            return
        self._refusal = WrongLedger(
            f"the file {self._path} is not the one this process opened: it was removed or replaced",
            where=str(self._path),
            next_step="stop the hosts, put the ledger back, and start them again",
        )
        raise self._refusal

    def _count(self, batch: list[_Entry], seconds: float) -> None:
        self.commits += 1
        if self._observe is not None:
            self._observe(len(batch), seconds)

    def _resolve(self, batch: list[_Entry]) -> None:
        for entry in batch:
            if entry.future is None or entry.future.done():
                continue
            if entry.error is not None:
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.verdict)

    def _translated(self, error: Exception) -> Exception:
        return sqlite.translated(error, self._path) if isinstance(error, sqlite3.Error) else error

    async def close(self) -> None:
        """Commit what is queued, then close the file."""
        self._wake()
        while self._running is not None:
            await asyncio.wait([self._running])
        if self._timer is not None:
            self._timer.cancel()
        self._refusal = LedgerUnavailable(
            f"the ledger {self._path} was closed by this process",
            where=str(self._path),
            next_step="open it again",
        )
        self._thread.shutdown(wait=True)
        self._connection.close()
