"""A Hands worker on a real ledger in a temporary folder, and a Brain that only keeps what it is told."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nerve.common.clock import SystemClock
from nerve.protocol.binding import ToolBinding
from nerve.protocol.catalog import Catalog
from nerve.protocol.commands import ReplyTo, StartCommand, request_digest
from nerve.protocol.controls import CancelExecution, QueryExecution, ReadOutput, ReplayUpdates
from nerve.protocol.envelope import Body, Envelope, open_envelope, seal
from nerve.protocol.identity import Origin, execution_id, new_turn_id
from nerve.protocol.updates import (
    ExecutionUpdate,
    NotFoundUpdate,
    OutputPageUpdate,
    SnapshotUpdate,
)
from support.waiting import SECONDS, soon

CELL = "cell-1"
NAMESPACE = "acme"
HOUR_MS = 3_600_000


@dataclass(slots=True)
class Asker:
    """Makes commands and controls as a Brain would. Each `call` is an execution of its own."""

    catalog: Catalog
    deployment: str = "local"
    namespace: str = NAMESPACE
    cell: str = CELL
    turn: str = field(default_factory=lambda: new_turn_id(SystemClock().now_ms()))
    count: int = 0

    def call(self, tool: str, **arguments: Any) -> StartCommand:
        return self.command(self.catalog.get(tool), arguments)

    def command(self, binding: ToolBinding, arguments: Mapping[str, Any]) -> StartCommand:
        self.count += 1
        execution = execution_id(self.turn, self.count)
        now = SystemClock().now_ms()
        return StartCommand(
            execution=execution,
            namespace=self.namespace,
            session="s-1",
            thread="main",
            turn=self.turn,
            call_id=f"call-{self.count}",
            tool=binding.name,
            tool_version=binding.version,
            binding_digest=binding.digest,
            arguments=dict(arguments),
            request_digest=request_digest(
                execution, binding.name, binding.version, binding.digest, dict(arguments)
            ),
            origin=Origin(run=f"{self.turn}.r1", step=f"{self.turn}.r1.s1"),
            reply_to=ReplyTo(cell=self.cell),
            attempt_key=execution,
            issued_at=now,
            admit_before=now + HOUR_MS,
        )

    def seal(self, body: Body) -> bytes:
        return self.envelope(body).raw

    def envelope(self, body: Body) -> Envelope:
        return seal(
            body=body,
            deployment=self.deployment,
            namespace=self.namespace,
            route=self.catalog.route,
            issued_at=SystemClock().now_ms(),
        )

    def query(self, execution: str) -> bytes:
        return self.seal(QueryExecution(execution=execution, reply_to=ReplyTo(cell=self.cell)))

    def cancel(self, execution: str, reason: str | None = None) -> bytes:
        reply = ReplyTo(cell=self.cell)
        body = CancelExecution(
            execution=execution, namespace=self.namespace, reply_to=reply, reason=reason
        )
        return self.seal(body)

    def replay(self, execution: str, sequence: int = 1) -> bytes:
        reply = ReplyTo(cell=self.cell)
        return self.seal(ReplayUpdates(execution=execution, reply_to=reply, from_sequence=sequence))

    def read_output(self, execution: str, **fields: Any) -> bytes:
        reply = ReplyTo(cell=self.cell)
        return self.seal(ReadOutput(execution=execution, reply_to=reply, **fields))


State = ExecutionUpdate | SnapshotUpdate


@dataclass(slots=True)
class Told:
    """What came back, by execution. `sink` is the Brain's end of an executor."""

    updates: dict[str, list[ExecutionUpdate]] = field(default_factory=lambda: defaultdict(list))
    snapshots: dict[str, list[SnapshotUpdate]] = field(default_factory=lambda: defaultdict(list))
    absences: dict[str, list[NotFoundUpdate]] = field(default_factory=lambda: defaultdict(list))
    outputs: dict[str, list[OutputPageUpdate]] = field(default_factory=lambda: defaultdict(list))
    raws: list[bytes] = field(default_factory=list[bytes])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def sink(self, raws: Sequence[bytes]) -> None:
        for raw in raws:
            self.keep(raw)

    def keep(self, raw: bytes) -> None:
        self.raws.append(raw)
        body = open_envelope(raw).body
        match body:
            case ExecutionUpdate():
                self.updates[body.execution].append(body)
            case SnapshotUpdate():
                self.snapshots[body.execution].append(body)
            case NotFoundUpdate():
                self.absences[body.execution].append(body)
            case OutputPageUpdate():
                self.outputs[body.execution].append(body)
            case _:
                raise AssertionError(f"not an update: {body!r}")
        self._changed.set()

    async def until(
        self, fact: Callable[["Told"], Any], what: str, seconds: float = SECONDS
    ) -> Any:
        """The first truthy `fact(self)`."""

        async def wait() -> Any:
            while not (found := fact(self)):
                self._changed.clear()
                await self._changed.wait()
            return found

        try:
            return await soon(wait(), seconds)
        except TimeoutError:
            raise AssertionError(f"within {seconds:g} s: {what}") from None

    async def end(self, execution: str, seconds: float = SECONDS) -> ExecutionUpdate:
        """The first terminal update of an execution."""

        def terminal(told: Told) -> ExecutionUpdate | None:
            found = (each for each in told.updates[execution] if each.state.is_terminal)
            return next(found, None)

        found = await self.until(terminal, f"{execution} ended", seconds)
        assert isinstance(found, ExecutionUpdate)
        return found

    async def ends(self, executions: Iterable[str]) -> list[ExecutionUpdate]:
        return [await self.end(each) for each in executions]

    async def snapshot(self, execution: str, count: int = 1) -> SnapshotUpdate:
        found = await self.until(
            lambda told: len(told.snapshots[execution]) >= count and told.snapshots[execution],
            f"{execution} was answered with a snapshot",
        )
        last = found[-1]
        assert isinstance(last, SnapshotUpdate)
        return last

    async def absence(self, execution: str) -> NotFoundUpdate:
        found = await self.until(
            lambda told: told.absences[execution], f"{execution} was answered as absent"
        )
        last = found[-1]
        assert isinstance(last, NotFoundUpdate)
        return last

    async def output(self, execution: str, count: int = 1) -> OutputPageUpdate:
        found = await self.until(
            lambda told: len(told.outputs[execution]) >= count and told.outputs[execution],
            f"output of {execution} was answered",
        )
        last = found[-1]
        assert isinstance(last, OutputPageUpdate)
        return last
