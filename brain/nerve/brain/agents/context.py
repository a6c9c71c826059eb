"""What the body of a function agent asks for, and how a repeat of it finds what is known."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from inspect import isawaitable, iscoroutinefunction
from typing import Any, NoReturn, Protocol, cast

from nerve.brain.agents.chat import Entry
from nerve.brain.agents.local import LocalOutcome, LocalTools
from nerve.brain.agents.replay import Record, outcome_of
from nerve.brain.harness import Boundary, Facts, Frame, HarnessHost, Receipt, ToolCall
from nerve.common.clock import Clock
from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import JsonValue, check_value
from nerve.protocol.errors import BadInput, Incompatible, NerveError
from nerve.protocol.execution import ExecutionState


class Interrupted(BaseException):
    """Leaves the body where it must wait or stop; no Exception, so that bodies let it pass."""

    def __init__(self, *, stopped: bool = False, error: Exception | None = None) -> None:
        super().__init__()
        self.stopped = stopped
        self.error = error


class CallFailed(NerveError):
    """A tool call that did not succeed; `outcome` says whether it may have had an effect."""

    code = "tool_call_failed"

    def __init__(self, tool: str, outcome: LocalOutcome) -> None:
        super().__init__(f"{tool}: {outcome.text}", where=tool)
        self.outcome = outcome


class Kernel(Protocol):
    """What a context needs of its agent."""

    local: LocalTools
    clock: Clock
    bindings: Mapping[str, ToolBinding]
    chance: Callable[[], float]


class PendingCall(Awaitable[JsonValue]):
    """A call that was asked for. Awaiting it gives the tool's value, or raises `CallFailed`."""

    def __init__(self, ctx: "Context", call: ToolCall) -> None:
        self.call = call
        self._ctx = ctx

    def __await__(self) -> Generator[Any, None, JsonValue]:
        return self._value().__await__()

    async def outcome(self) -> LocalOutcome:
        """State, effect, value and text, whatever became of the call."""
        return await self._ctx.outcome(self.call)

    async def _value(self) -> JsonValue:
        outcome = await self.outcome()
        if outcome.state is ExecutionState.SUCCEEDED:
            return outcome.value
        raise CallFailed(self.call.tool, outcome)


class Context:
    """Given to the body anew at each repeat of a Turn."""

    def __init__(self, agent: Kernel, frame: Frame, facts: Facts, host: HarnessHost) -> None:
        self.turn = facts.turn
        self.input = facts.input
        self.receipts: list[Receipt] = []
        self.asked: list[ToolCall] = []
        self.interrupted: Interrupted | None = None
        self._agent = agent
        self._frame = frame
        self._host = host
        self._diverged: Incompatible | None = None
        self._counts: dict[str, int] = {}
        self._record = Record.read(() if facts.fresh else frame.entries)
        self._record.results.update((each.call_id, outcome_of(each)) for each in facts.results)

    def history(self) -> list[Entry]:
        """What was said in the Thread before this Turn: entries with `role` and `text`."""
        said: list[Entry] = []
        for entry in cast("list[Entry]", self._frame.entries):
            if entry.get("turn") == self.turn:
                break
            if entry["role"] in ("user", "assistant"):
                said.append(entry)
        return said

    def call(self, tool: str, /, **arguments: Any) -> PendingCall:
        """Ask for a tool. It starts at the next wait, also where it is awaited later."""
        self._check_going_on()
        binding = self._agent.bindings.get(tool)
        if binding is None:
            known = ", ".join(self._agent.bindings) or "none"
            raise BadInput(
                f"there is no tool {tool!r}", where="call", next_step=f"The tools are: {known}"
            )
        checked = binding.check_arguments(check_value(arguments, "arguments"))
        call = ToolCall(call_id=f"call_{self._count('call')}", tool=tool, arguments=checked)
        try:
            self._record.check_same(call)
        except Incompatible as error:
            self._diverged = error
            raise
        if tool not in self._agent.local and call.call_id not in self._record.calls:
            self.asked.append(call)
        return PendingCall(self, call)

    async def step(self, key: str, function: Callable[..., Any], /, *args: Any, **kw: Any) -> Any:
        """The result of `function`, committed before this returns and not computed again.

        The result is JSON, as a repeat would give it. A plain function runs in a thread.
        """
        self._check_going_on()
        number = self._count(f"step:{key}")
        name = f"step:{key}" if number == 1 else f"step:{key}#{number}"
        kept = await self._receipt(name)
        if kept is not None:
            return cast("Entry", kept)["value"]
        await self._before_work()
        if iscoroutinefunction(function):
            result = await function(*args, **kw)
        else:
            result = await asyncio.to_thread(function, *args, **kw)
            result = await result if isawaitable(result) else result
        value = check_value(result, f"step {key}")
        await self._put(Receipt(key=name, value={"value": value}))
        return value

    async def gather(self, *awaitables: Awaitable[Any]) -> list[Any]:
        """The results of several calls and steps at once, in their order.

        All are there before the first failure is raised.
        """
        others = {n: each for n, each in enumerate(awaitables) if not isinstance(each, PendingCall)}
        done = dict(zip(others, await _all(others.values()), strict=True))
        calls = [each for each in awaitables if isinstance(each, PendingCall)]
        outcomes = [each.call.call_id for each in calls if self._is_remote(each.call)]
        if any(identity not in self._record.results for identity in outcomes):
            self._interrupt()
        return [done[n] if n in done else await each for n, each in enumerate(awaitables)]

    async def now(self) -> int:
        """Milliseconds since the epoch, the same at each repeat."""
        return cast("int", await self._once("now", self._agent.clock.now_ms))

    async def random(self) -> float:
        """A number from 0 up to 1, the same at each repeat."""
        return cast("float", await self._once("random", self._agent.chance))

    async def outcome(self, call: ToolCall) -> LocalOutcome:
        """What became of a call; leaves the body where that is not known yet."""
        self._check_going_on()
        if self._is_remote(call):
            known = self._record.results.get(call.call_id)
            return known if known is not None else self._interrupt()
        await self._before_work()
        arguments = dict(call.arguments)
        with self._hosts_errors():
            return await self._agent.local.run(call.call_id, call.tool, arguments, self._host)

    def check_replay(self) -> None:
        """Raise where this repeat asked for another thing than the ones before it."""
        if self._diverged is not None:
            raise self._diverged

    def check_end(self) -> None:
        """Raise where a body that ended left something behind."""
        self.check_replay()
        self._record.check_used(self._counts.get("call", 0))
        if self.asked:
            raise BadInput(
                f"the agent ended without awaiting its call of {self.asked[0].tool!r}",
                where=self.asked[0].call_id,
                next_step="Await each call, or give it to ctx.gather",
            )

    async def _once(self, kind: str, make: Callable[[], int | float]) -> JsonValue:
        self._check_going_on()
        key = f"{kind}:{self._count(kind)}"
        kept = await self._receipt(key)
        if kept is not None:
            return kept
        value = make()
        self.receipts.append(Receipt(key=key, value=value))
        return value

    async def _before_work(self) -> None:
        """What the work may rest on is committed before it starts."""
        with self._hosts_errors():
            boundary = await self._host.boundary()
        if boundary is Boundary.STOP:
            self._interrupt(stopped=True)
        while self.receipts:
            await self._put(self.receipts.pop(0))

    async def _receipt(self, key: str) -> JsonValue | None:
        with self._hosts_errors():
            return await self._host.receipt(key)

    async def _put(self, receipt: Receipt) -> None:
        with self._hosts_errors():
            await self._host.put_receipt(receipt)

    def _is_remote(self, call: ToolCall) -> bool:
        return call.tool not in self._agent.local

    def _count(self, kind: str) -> int:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return self._counts[kind]

    def _check_going_on(self) -> None:
        self.check_replay()
        if self.interrupted is not None:
            raise self.interrupted

    def _interrupt(self, *, stopped: bool = False, error: Exception | None = None) -> NoReturn:
        self.interrupted = Interrupted(stopped=stopped, error=error)
        raise self.interrupted from error

    @contextmanager
    def _hosts_errors(self) -> Generator[None, None, None]:
        """What the host raises (a lost Thread, a cancelled Turn) is not for the body to catch."""
        try:
            yield
        except Exception as error:
            self._interrupt(error=error)


async def _all(awaitables: Any) -> list[Any]:
    """Their results; where one raises, the others do not run on alone."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
