"""What is told to Brain beside the ends: admissions that last, and answers to questions.

Updates that change the history leave by the outbox of the transaction that made them. Answers decide
nothing, so they are read from a committed snapshot and sent as they are; a lost one is asked for again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import final

import orjson

from nerve.common.clock import Clock, Timer
from nerve.common.logs import get_log
from nerve.common.sql import Ledger, Row
from nerve.hands.ledger.answers import Output, Present, output, position, present, recorded
from nerve.hands.ledger.progress import Obstacle, Progress, report_progress, waits_for
from nerve.hands.ledger.records import read_row
from nerve.hands.ledger.reports import Speaker
from nerve.hands.ledger.seals import sealed, wire_pages
from nerve.protocol.commands import parse_address
from nerve.protocol.controls import ReadOutput
from nerve.protocol.envelope import open_envelope
from nerve.protocol.errors import BadInput, TooLarge
from nerve.protocol.execution import Effect, ExecutionState
from nerve.protocol.output import PAGE_BYTES_MAX, OutputPage, OutputSeal
from nerve.protocol.updates import (
    Absence,
    ExecutionUpdate,
    HelloUpdate,
    NotFoundUpdate,
    OutputPageUpdate,
    SnapshotUpdate,
)

_log = get_log("nerve.hands.report")

Answer = SnapshotUpdate | NotFoundUpdate | OutputPageUpdate | HelloUpdate

Publish = Callable[[str, Sequence[bytes]], Awaitable[None]]

PROGRESS_UNITS = 64
REPLAY_MAX = 1000
OUTPUT_BYTES_MAX = 512 * 1024


@final
class Progresses:
    """Reports an admission or a start when no end followed within a while."""

    def __init__(
        self,
        ledger: Ledger,
        speaker: Speaker,
        *,
        obstacle: Obstacle,
        clock: Clock,
        after_seconds: float,
    ) -> None:
        self._ledger = ledger
        self.obstacle = obstacle
        self._speaker = speaker
        self._clock = clock
        self._after = after_seconds
        self._open: set[str] = set()
        self._due: deque[tuple[float, Sequence[str]]] = deque()
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def watched(self) -> int:
        """Executions that are reported if they last."""
        return len(self._open)

    def watch(self, executions: Sequence[str]) -> None:
        if not executions:
            return
        self._open.update(executions)
        self._due.append((self._clock.monotonic() + self._after, executions))
        if self._timer is None:
            self._timer = self._clock.call_later(self._after, self._fire)

    def ended(self, execution: str) -> None:
        self._open.discard(execution)

    def now(self, executions: Sequence[str]) -> None:
        """Report these at once: somebody asked."""
        self._spawn(executions)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        due: list[str] = []
        while self._due and self._due[0][0] <= now:
            due += [each for each in self._due.popleft()[1] if each in self._open]
        self._open.difference_update(due)
        if due:
            self._spawn(due)
        if self._due:
            self._timer = self._clock.call_later(max(0.01, self._due[0][0] - now), self._fire)

    def _spawn(self, executions: Sequence[str]) -> None:
        work = self._report(list(dict.fromkeys(executions)))
        task = asyncio.get_running_loop().create_task(work, name="progress")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report(self, executions: Sequence[str]) -> None:
        for begin in range(0, len(executions), PROGRESS_UNITS):
            some = executions[begin : begin + PROGRESS_UNITS]
            unit = Progress(
                executions=some,
                speaker=self._speaker,
                obstacle=self.obstacle,
                now=self._clock.now_ms(),
            )
            try:
                await self._ledger.commit(report_progress, unit)
            except Exception as error:
                # Brain asks after a silence, so a report that was not made is not missed.
                _log.warning("could not report progress", cause="progress", error=error)


@final
class Answers:
    """Answers questions from the ledger. `publish(cell, envelopes)` sends; nobody waits for it."""

    def __init__(
        self,
        ledger: Ledger,
        speaker: Speaker,
        progresses: Progresses,
        publish: Publish,
        *,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._speaker = speaker
        self._progresses = progresses
        self._publish = publish
        self._clock = clock
        self._waiting: dict[str, list[bytes]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def state(
        self, execution: str, *, cell: str, namespace: str, grouped: bool = False
    ) -> None:
        """The present state, or that there is none.

        A grouped question concerns many namespaces at once; another one must name the right one.
        """
        found = await self._ledger.read(lambda tx: present(tx, execution))
        row = found.row
        if row is not None and not grouped:
            check_namespace(row, namespace)
        if row is None:
            self._absent(execution, found, cell=cell, namespace=namespace)
        elif row["sequence"] == 0:
            self._progresses.now([execution])
        else:
            self._say(self._snapshot(row, found), cell=cell, namespace=row["namespace"])

    async def refusal(
        self, execution: str, absence: Absence, *, code: str, reason: str, cell: str, namespace: str
    ) -> None:
        """That a command was not taken, and why."""
        at = await self._ledger.read(position)
        body = self._not_found(execution, absence, at, code=code, reason=reason)
        self._say(body, cell=cell, namespace=namespace)

    async def replay(
        self, execution: str, from_sequence: int, *, cell: str, namespace: str
    ) -> None:
        """The recorded updates again; where they are gone, the present state closes the gap."""
        raws = await self._ledger.read(
            lambda tx: recorded(tx, execution, from_sequence, REPLAY_MAX)
        )
        row = await self._ledger.read(lambda tx: read_row(tx, execution))
        if row is not None:
            check_namespace(row, namespace)
        if raws:
            self._send(cell, raws)
        else:
            await self.state(execution, cell=cell, namespace=namespace)

    async def read_output(self, question: ReadOutput, *, namespace: str) -> None:
        limit = min(question.limit, OUTPUT_BYTES_MAX)
        while True:
            body = await self._output(question, limit, namespace)
            cell = question.reply_to.address
            if body is None:
                await self.state(question.execution, cell=cell, namespace=namespace)
                return
            try:
                self._say(body, cell=cell, namespace=namespace)
                return
            except TooLarge:
                # Control characters take six bytes in JSON: a smaller page fits.
                limit = max(1, limit // 4)

    def hello(self, body: HelloUpdate, *, cell: str) -> None:
        """Answer a greeting."""
        self._say(body, cell=cell, namespace="all")

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _snapshot(self, row: Row, found: Present) -> SnapshotUpdate:
        now = self._clock.now_ms()
        last = _update_of(found.last)
        waits = waits_for(row, self._progresses.obstacle)
        return SnapshotUpdate(
            execution=row["id"],
            sequence=row["sequence"],
            state=ExecutionState(row["state"]),
            effect=Effect(row["effect"]),
            attempt=row["attempt"],
            result=None if last is None else last.result,
            result_ref=None if last is None else last.result_ref,
            code=row["code"] or ("waiting" if waits else None),
            reason=row["reason"] or waits,
            host=row["host"] or self._speaker.host,
            ledger=self._speaker.mark(found.position),
            at=now,
            request_digest=row["request_digest"],
            cancel_requested=row["cancel_requested_at"] is not None,
            older_commands_arriving=now < self._speaker.late_until,
        )

    def _absent(self, execution: str, found: Present, *, cell: str, namespace: str) -> None:
        barred = found.barred
        body = self._not_found(
            execution,
            Absence.NEVER_SEEN if barred is None else Absence.REFUSED,
            found.position,
            code=None if barred is None else barred["code"],
            reason=None if barred is None else barred["reason"],
        )
        self._say(body, cell=cell, namespace=namespace)

    def _not_found(
        self, execution: str, absence: Absence, at: int, *, code: str | None, reason: str | None
    ) -> NotFoundUpdate:
        now = self._clock.now_ms()
        return NotFoundUpdate(
            execution=execution,
            absence=absence,
            code=code,
            reason=reason,
            host=self._speaker.host,
            ledger=self._speaker.mark(at),
            at=now,
            older_commands_arriving=now < self._speaker.late_until,
        )

    async def _output(
        self, question: ReadOutput, limit: int, namespace: str
    ) -> OutputPageUpdate | None:
        rows = limit // PAGE_BYTES_MAX + 3
        found = await self._ledger.read(
            lambda tx: output(
                tx, question.execution, question.attempt, offset=question.offset, limit=rows
            )
        )
        if found is None:
            return None
        check_namespace(found.row, namespace)
        cut = wire_pages(question.execution, iter(found.pages), offset=question.offset, limit=limit)
        pages = tuple(cut)
        end = max((page.end for page in pages), default=question.offset)
        return OutputPageUpdate(
            execution=question.execution,
            pages=pages,
            next_offset=end,
            seal=await self._seal(found, pages, end),
            at=self._clock.now_ms(),
        )

    async def _seal(
        self, found: Output, pages: Sequence[OutputPage], end: int
    ) -> OutputSeal | None:
        state = ExecutionState(found.row["state"])
        all_read = len(pages) == len(found.pages)
        if not all_read or not state.is_settled or found.attempt == 0:
            return None
        execution: str = found.row["id"]
        if found.row["seal"] is not None:
            seal = OutputSeal.model_validate(orjson.loads(found.row["seal"]))
        else:
            seal = await self._ledger.read(lambda tx: sealed(tx, execution, found.attempt))
        return seal if end >= seal.total_bytes else None

    def _say(self, body: Answer, *, cell: str, namespace: str) -> None:
        body = body.model_copy(update={"seat": parse_address(cell)[1]})
        envelope = self._speaker.seal(body, namespace=namespace, now=self._clock.now_ms())
        self._send(cell, [envelope.raw])

    def _send(self, cell: str, raws: Iterable[bytes]) -> None:
        self._waiting.setdefault(cell, []).extend(raws)
        if cell not in self._tasks:
            work = self._drive(cell)
            self._tasks[cell] = asyncio.get_running_loop().create_task(work, name="answers")

    async def _drive(self, cell: str) -> None:
        try:
            while raws := self._waiting.pop(cell, None):
                try:
                    await self._publish(self._speaker.destination(cell), raws)
                except Exception as error:
                    _log.warning("answers were not sent", cause=f"answers:{cell}", error=error)
        finally:
            self._tasks.pop(cell, None)


def _update_of(raw: bytes | None) -> ExecutionUpdate | None:
    if raw is None:
        return None
    body = open_envelope(raw).body
    return body if isinstance(body, ExecutionUpdate) else None


def check_namespace(row: Row, namespace: str) -> None:
    """Raises BadInput where a message names another tenant than the execution has."""
    if row["namespace"] != namespace:
        raise BadInput(
            f"execution {row['id']} is not one of namespace {namespace}",
            where="namespace",
            next_step="name the namespace of the Session that asked for it",
        )
