"""Hands whose answers the test gives: every envelope is kept, every update is sealed on request."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import open_envelope, seal
from nerve.protocol.execution import (
    EFFECTS,
    Effect,
    ExecutionResult,
    ExecutionState,
    value_result,
)
from nerve.protocol.executor import ExecutorCapabilities, UpdateSink
from nerve.protocol.updates import (
    Absence,
    ExecutionUpdate,
    LedgerMark,
    NotFoundUpdate,
    SnapshotUpdate,
)
from support.waiting import until

NOW = 1_700_000_000_000
_DEFAULT_EFFECT = {
    ExecutionState.FAILED: Effect.NONE,
    ExecutionState.CANCELLED: Effect.NONE,
}


def effect_of(state: ExecutionState) -> Effect:
    return _DEFAULT_EFFECT.get(state) or next(iter(EFFECTS[state]))


class FakeHands:
    """An `Executor` of one route. `auto` answers each new command by itself, where it is given."""

    def __init__(
        self,
        *,
        route: str = "hands",
        ledger: str = "hands-ledger-1",
        auto: Callable[[StartCommand], Any] | None = None,
        namespace: str = "acme",
    ) -> None:
        self.route = route
        self.namespace = namespace
        self.mark = LedgerMark(ledger_id=ledger, epoch=1, position=1)
        self.auto = auto
        self.commands: list[StartCommand] = []
        self.raws: list[bytes] = []
        self.controls: list[Any] = []
        self.answered: set[str] = set()
        self.failing: Exception | None = None
        self.sinks: list[UpdateSink] = []
        self.cells: list[str] = []

    async def open(self, cell: str, sink: UpdateSink) -> None:
        self.sinks.append(sink)
        self.cells.append(cell)

    async def start(self, envelopes: Sequence[bytes]) -> None:
        self._refuse()
        for raw in envelopes:
            body = open_envelope(raw).body
            assert isinstance(body, StartCommand)
            self.commands.append(body)
            self.raws.append(raw)
            if self.auto is not None and body.execution not in self.answered:
                await self.succeed(body.execution, self.auto(body))
                self.answered.add(body.execution)

    async def control(self, envelopes: Sequence[bytes]) -> None:
        self._refuse()
        self.controls += [open_envelope(raw).body for raw in envelopes]

    def capabilities(self) -> ExecutorCapabilities:
        return ExecutorCapabilities(routes=(self.route,))

    async def close(self) -> None: ...

    @property
    def executions(self) -> list[str]:
        """Distinct executions, in the order of their first command."""
        return list(dict.fromkeys(command.execution for command in self.commands))

    async def asked(self, count: int = 1) -> list[str]:
        """Wait for `count` distinct executions."""
        await until(lambda: len(self.executions) >= count, f"{count} commands reach Hands")
        return self.executions

    def controls_of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.controls if isinstance(each, kind)]

    def update(
        self,
        execution: str,
        state: ExecutionState = ExecutionState.SUCCEEDED,
        value: object = "done",
        *,
        sequence: int = 1,
        effect: Effect | None = None,
        result: ExecutionResult | None = None,
        reason: str | None = None,
        snapshot: bool = False,
        attempt: int = 1,
    ) -> bytes:
        """A sealed update."""
        if result is None and state.is_terminal and state is not ExecutionState.UNKNOWN:
            result = value_result(value)
        fields: dict[str, Any] = {
            "execution": execution,
            "sequence": sequence,
            "state": state,
            "effect": effect or effect_of(state),
            "attempt": attempt,
            "result": result,
            "reason": reason,
            "host": "hands-host",
            "ledger": self.next_mark(),
            "at": NOW,
        }
        body = SnapshotUpdate(**fields) if snapshot else ExecutionUpdate(**fields)
        return self._sealed(body)

    def not_found(
        self, execution: str, absence: Absence = Absence.NEVER_SEEN, **said: Any
    ) -> bytes:
        return self._sealed(
            NotFoundUpdate(
                execution=execution,
                absence=absence,
                host="hands-host",
                ledger=said.pop("ledger", None) or self.next_mark(),
                at=NOW,
                **said,
            )
        )

    def next_mark(self) -> LedgerMark:
        self.mark = self.mark.model_copy(update={"position": self.mark.position + 1})
        return self.mark

    async def send(self, *raws: bytes) -> None:
        """Hand updates to the Brain that opened last; returns after they are committed."""
        await self.sinks[-1](raws)

    async def succeed(self, execution: str, value: object = "done", **said: Any) -> None:
        await self.send(self.update(execution, value=value, **said))

    def _sealed(self, body: ExecutionUpdate | SnapshotUpdate | NotFoundUpdate) -> bytes:
        return seal(
            body=body,
            deployment="local",
            namespace=self.namespace,
            route=self.route,
            issued_at=NOW,
        ).raw

    def _refuse(self) -> None:
        if self.failing is not None:
            raise self.failing


Sink = Callable[[Sequence[bytes]], Awaitable[None]]
