"""Many laws over one server transaction, in step: what they ask at the same moment travels together.

Each law is a coroutine that stops at every statement. Those that stop at the same statement are
executed in one round trip, so that a batch of sixty-four units costs as many round trips as one law
has statements, and not sixty-four times as many. Units of one batch share no conflict key, and so
it does not matter in which order their statements meet the server.
"""

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar, cast

from nerve.common import faults
from nerve.common.sql.law import Law, Row, Value
from nerve.common.sql.statement import Statement

T = TypeVar("T")


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


@dataclass(slots=True)
class Requests:
    """Several statements that parts of one law wait for at the same moment."""

    parts: Sequence[Request]

    def __await__(self) -> Generator["Requests", Any, Any]:
        return (yield self)


@dataclass(slots=True)
class Step:
    """A unit on its way: `verdict` or `error` once it has ended."""

    law: Law[Any, Any]
    unit: Any
    verdict: Any = None
    error: Exception | None = None
    wrote: bool = False
    callbacks: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def again(self) -> None:
        """Forget an attempt that was rolled back."""
        self.verdict, self.error, self.wrote = None, None, False
        self.callbacks.clear()


Postponed = dict[str, tuple[Statement, list[tuple[Value, ...]]]]
"""What goes out with the commit, by statement."""


class LockstepTx:
    """The `Tx` of one unit."""

    __slots__ = ("_postponed", "_step")

    def __init__(self, step: Step, postponed: Postponed) -> None:
        self._step = step
        self._postponed = postponed

    async def run(self, statement: Statement, /, **parameters: Value) -> int:
        count = await Request(Kind.RUN, statement, (statement.arguments(parameters),))
        self._step.wrote = self._step.wrote or bool(count)
        return cast(int, count)

    async def one(self, statement: Statement, /, **parameters: Value) -> Row | None:
        rows = await self.all(statement, **parameters)
        return rows[0] if rows else None

    async def all(self, statement: Statement, /, **parameters: Value) -> Sequence[Row]:
        rows = await Request(Kind.ROWS, statement, (statement.arguments(parameters),))
        if rows and not statement.reads:
            self._step.wrote = True
        return cast("Sequence[Row]", rows)

    async def many(self, statement: Statement, rows: Sequence[Mapping[str, Value]], /) -> None:
        if rows:
            self._step.wrote = True
            _, arguments = self._postponed.setdefault(statement.text, (statement, []))
            arguments.extend(map(statement.arguments, rows))

    async def later(self, statement: Statement, /, **parameters: Value) -> None:
        await self.many(statement, (parameters,))

    async def lock(self, statement: Statement, /, **parameters: Value) -> None:
        await Request(Kind.ROWS, statement, (statement.arguments(parameters),))

    async def gather(self, works: Sequence[Coroutine[Any, Any, T]], /) -> list[T]:
        parts = [_Part(cast("Generator[Request, Any, Any]", work.__await__())) for work in works]
        try:
            waiting: list[_Part] = [part for part in parts if part.go_on(None)]
            while waiting:
                asked: list[Request] = [part.request for part in waiting]
                answers: list[Any] = await Requests(asked)
                answered = list(zip(waiting, answers, strict=True))
                waiting = [part for part, answer in answered if part.go_on(answer)]
        finally:
            for part in parts:
                part.running.close()
        return [part.result for part in parts]

    def after(self, callback: Callable[[], None], /) -> None:
        self._step.callbacks.append(callback)


class _Part:
    """One of several parts of a law that run in step."""

    __slots__ = ("request", "result", "running")

    def __init__(self, running: Generator[Request, Any, Any]) -> None:
        self.running = running
        self.request: Request
        self.result: Any = None

    def go_on(self, answer: Any) -> bool:
        """Whether it waits for another answer."""
        try:
            self.request = self.running.send(answer)
        except StopIteration as end:
            self.result = end.value
            return False
        return True


class Server(Protocol):
    """One connection inside a transaction."""

    async def execute(
        self, kind: Kind, statement: Statement, arguments: Sequence[tuple[Value, ...]]
    ) -> Sequence[Any]:
        """One answer per tuple of arguments: a count (RUN), rows (ROWS) or None (MANY)."""
        ...

    async def write(self, work: Sequence[tuple[Statement, Sequence[tuple[Value, ...]]]]) -> None:
        """Execute each statement once per tuple; of one table in this order."""
        ...


class Spoilt(Exception):
    """A law raised after it had written: the transaction holds what must not be committed."""


@dataclass(slots=True)
class _Waiting:
    step: Step
    running: Generator[Request | Requests, Any, Any]
    request: Request | Requests


async def run(steps: Sequence[Step], server: Server) -> None:
    """Run every step to its end. One that raises before it wrote has its answer, as any other.

    Raises:
        Spoilt: one raised after it had written; nothing may be committed.
    """
    postponed: Postponed = {}
    waiting: list[_Waiting] = []
    try:
        for step in steps:
            coroutine = step.law.apply(LockstepTx(step, postponed), step.unit)
            running = cast("Generator[Request | Requests, Any, Any]", coroutine.__await__())
            _go_on(step, running, None, waiting)
        while waiting:
            answers = await _answer([each.request for each in waiting], server)
            stopped, waiting = waiting, []
            for each, answer in zip(stopped, answers, strict=True):
                _go_on(each.step, each.running, answer, waiting)
        if postponed:
            await server.write(list(postponed.values()))
    finally:
        for each in waiting:
            each.running.close()


def _go_on(
    step: Step,
    running: Generator[Request | Requests, Any, Any],
    answer: Any,
    waiting: list[_Waiting],
) -> None:
    try:
        request = running.send(answer)
    except StopIteration as end:
        step.verdict = end.value
        _end(step)
    except Exception as error:
        _fail(step, error)
    else:
        waiting.append(_Waiting(step, running, request))


def _end(step: Step) -> None:
    if step.law.before_commit:
        try:
            faults.point(step.law.before_commit)
        except Exception as error:
            _fail(step, error)


def _fail(step: Step, error: Exception) -> None:
    step.error = error
    step.callbacks.clear()
    if step.wrote:
        raise Spoilt from error


async def _answer(waiting: Sequence[Request | Requests], server: Server) -> list[Any]:
    """The answer of each, where one may be a list of them."""
    flat: list[Request] = []
    for each in waiting:
        flat += each.parts if isinstance(each, Requests) else (each,)
    answers = iter(await _ask(flat, server))
    return [
        [next(answers) for _ in each.parts] if isinstance(each, Requests) else next(answers)
        for each in waiting
    ]


async def _ask(requests: Sequence[Request], server: Server) -> list[Any]:
    """Each request's answer; equal statements go together, in the order of their first asker."""
    groups: dict[tuple[str, Kind], list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault((request.statement.text, request.kind), []).append(number)
    answers: list[Any] = [None] * len(requests)
    for numbers in groups.values():
        first = requests[numbers[0]]
        given = await _together(
            first, [requests[number].arguments[0] for number in numbers], server
        )
        for number, answer in zip(numbers, given, strict=True):
            answers[number] = answer
    return answers


async def _together(
    first: Request, arguments: list[tuple[Value, ...]], server: Server
) -> Sequence[Any]:
    """Answers for each tuple; a question asked twice at the same moment is sent once."""
    if len(arguments) == 1 or not first.statement.reads:
        return await server.execute(first.kind, first.statement, arguments)
    different = list(dict.fromkeys(arguments))
    given = dict(
        zip(
            different,
            await server.execute(first.kind, first.statement, different),
            strict=True,
        )
    )
    return [given[each] for each in arguments]
