"""Many laws over one server transaction, in step: what they ask at the same moment travels together.

Each law is a coroutine that stops at every statement. Those that stop at the same statement are
executed in one round trip, so that a batch of sixty-four units costs as many round trips as one law
has statements, and not sixty-four times as many. Units of one batch share no conflict key, and so
it does not matter in which order their statements meet the server.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, cast

from nerve.common.sql.law import Law, Row, Value
from nerve.common.sql.statement import Statement


class Kind(StrEnum):
    """What a law wants back: a count, rows, or nothing of many executions."""

    RUN = "run"
    ROWS = "rows"
    MANY = "many"


@dataclass(slots=True)
class Request:
    """One statement that a law waits for. Awaiting it suspends the law up to the driver."""

    kind: Kind
    statement: Statement
    arguments: Sequence[tuple[Value, ...]]

    def __await__(self) -> Generator["Request", Any, Any]:
        return (yield self)


class LockstepTx:
    """The `Tx` of one unit."""

    __slots__ = ("_callbacks",)

    def __init__(self, callbacks: list[Callable[[], None]]) -> None:
        self._callbacks = callbacks

    async def run(self, statement: Statement, /, **parameters: Value) -> int:
        return cast(int, await Request(Kind.RUN, statement, (statement.arguments(parameters),)))

    async def one(self, statement: Statement, /, **parameters: Value) -> Row | None:
        rows = await Request(Kind.ROWS, statement, (statement.arguments(parameters),))
        return cast("Row | None", rows[0] if rows else None)

    async def all(self, statement: Statement, /, **parameters: Value) -> Sequence[Row]:
        rows = await Request(Kind.ROWS, statement, (statement.arguments(parameters),))
        return cast("Sequence[Row]", rows)

    async def many(self, statement: Statement, rows: Sequence[Mapping[str, Value]], /) -> None:
        if rows:
            await Request(Kind.MANY, statement, [statement.arguments(row) for row in rows])

    def after(self, callback: Callable[[], None], /) -> None:
        self._callbacks.append(callback)


class Server(Protocol):
    """One connection inside a transaction."""

    async def execute(
        self, kind: Kind, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Sequence[Any]:
        """One answer per tuple of arguments: a count (RUN), rows (ROWS) or None (MANY)."""
        ...


@dataclass(slots=True)
class Step:
    """A unit on its way: `verdict` or `error` once it has ended."""

    law: Law[Any, Any]
    unit: Any
    verdict: Any = None
    error: Exception | None = None


async def run(steps: Sequence[Step], server: Server, callbacks: list[Callable[[], None]]) -> bool:
    """Run every step to its end; False as soon as a law has raised (its `error` says what)."""
    waiting: list[tuple[Step, Generator[Request, Any, Any], Request]] = []
    for step in steps:
        coroutine = step.law.apply(LockstepTx(callbacks), step.unit)
        running = cast("Generator[Request, Any, Any]", coroutine.__await__())
        _go_on(step, running, None, waiting)
    while waiting and all(step.error is None for step in steps):
        answers = await _ask([request for _, _, request in waiting], server)
        stopped, waiting = waiting, []
        for (step, running, _), answer in zip(stopped, answers, strict=True):
            _go_on(step, running, answer, waiting)
    for _, running, _ in waiting:
        running.close()
    return all(step.error is None for step in steps)


def _go_on(
    step: Step,
    running: Generator[Request, Any, Any],
    answer: Any,
    waiting: list[tuple[Step, Generator[Request, Any, Any], Request]],
) -> None:
    try:
        request = running.send(answer)
    except StopIteration as end:
        step.verdict = end.value
    except Exception as error:
        step.error = error
    else:
        waiting.append((step, running, request))


async def _ask(requests: Sequence[Request], server: Server) -> list[Any]:
    """Each request's answer; equal statements go together, in the order of their first asker."""
    groups: dict[tuple[str, Kind], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault((request.statement.text, request.kind), []).append(number)
    answers: list[Any] = [None] * len(requests)
    for numbers in groups.values():
        first = requests[numbers[0]]
        arguments = [each for number in numbers for each in requests[number].arguments]
        given = await server.execute(first.kind, first.statement, arguments)
        if first.kind is Kind.MANY:
            continue
        for number, answer in zip(numbers, given, strict=True):
            answers[number] = answer
    return answers
