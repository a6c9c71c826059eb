"""What a ledger commits: a law, its unit and its verdict.

A law is one transaction function. It is written as a coroutine over `Tx`, and a caller never
runs it: it hands (law, unit) to a committer and gets the verdict back after the commit. Many
units share one commit, so a law may not assume that it is alone in its transaction, and its
first write must be the fenced one: a refused unit returns its refusal before it has written.

On SQLite the awaits of a `Tx` never suspend, so the committer runs a law to its end on the
event loop; on a server the very same function awaits its round trips.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from nerve.common import faults
from nerve.common.sql.statement import Statement

U = TypeVar("U")
V = TypeVar("V")
T = TypeVar("T")

ALONE = "*"
"""The conflict key of a law that touches what no key names: nothing shares its batch."""

Value = str | int | float | bytes | None


class Again(Exception):
    """Raised by a law that found nothing because others hold it at this moment: the unit is tried
    again soon, and in the end has `verdict`. It has written nothing."""

    def __init__(self, verdict: object) -> None:
        super().__init__("others hold what this unit looks for")
        self.verdict = verdict


class Row(Protocol):
    """One row, read by column name or position. Values are what the statement selected."""

    # A driver's row is untyped: the reader knows what its statement selects.
    def __getitem__(self, key: str | int, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...


class Tx(Protocol):
    """One open transaction."""

    async def run(self, statement: Statement, /, **parameters: Value) -> int:
        """Execute and return the number of rows written."""
        ...

    async def one(self, statement: Statement, /, **parameters: Value) -> Row | None:
        """The first row, or None. For RETURNING too."""
        ...

    async def all(self, statement: Statement, /, **parameters: Value) -> Sequence[Row]: ...

    async def many(self, statement: Statement, rows: Sequence[Mapping[str, Value]], /) -> None:
        """Execute once per row. On a server it may go out with the commit: a law that writes so
        does not read it again."""
        ...

    async def later(self, statement: Statement, /, **parameters: Value) -> None:
        """As `many`, of one: a write that nothing in this law looks back at."""
        ...

    async def lock(self, statement: Statement, /, **parameters: Value) -> None:
        """Take the row locks of a `select ... for update` on a server; what is read afterwards
        stands still. SQLite has one writer and is not asked."""
        ...

    async def gather(self, works: Sequence[Coroutine[Any, Any, T]], /) -> list[T]:
        """Run parts of a law that do not depend on each other, in step where that saves trips."""
        ...

    def after(self, callback: Callable[[], None], /) -> None:
        """Call `callback` once the transaction has committed; never otherwise.

        It must not raise and must not block: it rings a bell or hands over a row.
        """
        ...


@dataclass(frozen=True, slots=True)
class Law(Generic[U, V]):
    """A transaction function with its name (for faults and metrics) and its conflict keys.

    A batch on a server holds at most one unit per key, because one statement sees one snapshot.
    """

    name: str
    before_commit: str
    after_commit: str
    apply: Callable[[Tx, U], Awaitable[V]]
    # Any: a lambda beside the decorator is written before its unit is known.
    keys: Callable[[Any], Sequence[str]]


def law(
    name: str, keys: Callable[[Any], Sequence[str]]
) -> Callable[[Callable[[Tx, U], Awaitable[V]]], Law[U, V]]:
    """Make a transaction function a law: `@law("brain.park", keys=lambda unit: (unit.thread,))`."""

    before, after = f"{name}.before_commit", f"{name}.after_commit"
    faults.register(name.partition(".")[0], [before, after])

    def make(apply: Callable[[Tx, U], Awaitable[V]]) -> Law[U, V]:
        return Law(name=name, before_commit=before, after_commit=after, apply=apply, keys=keys)

    return make
