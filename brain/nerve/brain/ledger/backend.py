"""Where a Brain keeps its truth: the ledger, its place, the hints and the objects beside it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, final

from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import Clock, SystemClock
from nerve.common.liveness import FileLiveness, Liveness
from nerve.common.objects.files import FileObjects
from nerve.common.objects.port import ObjectStore
from nerve.common.place import StateDirectory
from nerve.common.sql import Ledger, SqliteLedger, open_sqlite
from nerve.common.wakeups import Doorbell, Wakeups

LEDGER = "brain"


class SessionBackend(Protocol):
    """What a runtime needs of its storage. It stays the caller's: a runtime never closes it."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def wakeups(self) -> Wakeups: ...

    @property
    def objects(self) -> ObjectStore: ...

    @property
    def liveness(self) -> Liveness: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def seat(self) -> str:
        """Where the ledger stands: two copies of one stand apart."""
        ...


@dataclass(slots=True)
class LocalBackend:
    """SQLite, file objects and doorbells in one directory; reopen it and go on."""

    directory: StateDirectory
    ledger: SqliteLedger
    wakeups: Wakeups
    objects: ObjectStore
    clock: Clock

    @property
    def liveness(self) -> Liveness:
        return FileLiveness(self.directory.locks, self.ledger.path)

    @property
    def seat(self) -> str:
        return self.directory.seat

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        create: bool = True,
        clock: Clock | None = None,
        lock_wait_seconds: float = 10.0,
        observe: Callable[[int, float], None] | None = None,
    ) -> "_Opening":
        """Open or make the Brain's state in `directory`; use it as an async context manager, or await it.

        `observe(units, seconds)` is called after each commit.

        Raises:
            WrongLedger: `create` is False and there is none; or the folder is a copy or was moved.
            BadInput: the folder is on a network file system.
            SchemaTooNew, Damaged, DiskFull, LedgerUnavailable.
        """
        return _Opening(
            Path(directory),
            create=create,
            clock=clock or SystemClock(),
            lock_wait_seconds=lock_wait_seconds,
            observe=observe,
        )

    async def close(self) -> None:
        await self.ledger.close()
        self.wakeups.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


@final
class WithWakeups:
    """A backend whose hints travel another way than its own; both stay the caller's."""

    def __init__(self, backend: SessionBackend, wakeups: Wakeups) -> None:
        self.ledger = backend.ledger
        self.wakeups = wakeups
        self.liveness = backend.liveness
        self.clock = backend.clock
        self.seat = backend.seat
        self._backend = backend

    @property
    def objects(self) -> ObjectStore:
        return self._backend.objects


class _Opening:
    """`await LocalBackend.open(d)` and `async with LocalBackend.open(d) as backend` alike."""

    def __init__(
        self,
        path: Path,
        *,
        create: bool,
        clock: Clock,
        lock_wait_seconds: float,
        observe: Callable[[int, float], None] | None,
    ) -> None:
        self._path = path
        self._observe = observe
        self._lock_wait_seconds = lock_wait_seconds
        self._create = create
        self._clock = clock
        self._backend: LocalBackend | None = None

    def __await__(self):  # type: ignore[no-untyped-def]  # the generator of `_open`
        return self._open().__await__()

    async def _open(self) -> LocalBackend:
        place = StateDirectory.open(self._path, create=self._create)
        create = self._create and LEDGER not in place.ledgers
        ledger = await open_sqlite(
            place.ledger(LEDGER),
            SCHEMA,
            clock=self._clock,
            create=create,
            lock_wait_seconds=self._lock_wait_seconds,
            observe=self._observe,
        )
        try:
            place.made(LEDGER)
            wakeups = Doorbell.open(place.path)
        except BaseException:
            await ledger.close()
            raise
        return LocalBackend(
            directory=place,
            ledger=ledger,
            wakeups=wakeups,
            objects=FileObjects(place.objects),
            clock=self._clock,
        )

    async def __aenter__(self) -> LocalBackend:
        self._backend = await self._open()
        return self._backend

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._backend is not None
        await self._backend.close()
