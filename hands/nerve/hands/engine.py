"""Runs what this host owns, and only that.

The ledger decides who owns an execution. This module never runs one that a committed transaction has
not given to its host, looks at the host's own heartbeat just before it enters a tool, and after a
restart starts nothing again by itself: whoever releases a dead host decides that (`state.record.lost`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.large import LOST, Large
from nerve.common.lease import Host
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.sql import Ledger
from nerve.hands.arguments import never_entered, stowed, whole
from nerve.hands.ledger.finish import Finish, Observation, finish, observe
from nerve.hands.ledger.pages import Append, Page, append_output
from nerve.hands.ledger.release import Abandon, abandon
from nerve.hands.ledger.reports import Speaker
from nerve.hands.metrics import HandsMetrics
from nerve.hands.output import Output
from nerve.hands.port import Ended, Tools, current_run
from nerve.hands.running import Running
from nerve.hands.slots import Slots
from nerve.protocol.binding import ToolBinding
from nerve.protocol.commands import StartCommand
from nerve.protocol.errors import NerveError, Unavailable, WrongLedger
from nerve.protocol.execution import ExecutionResult, placeholder_result
from nerve.protocol.output import OutputSeal

_log = get_log("nerve.hands.engine")

faults.register(
    "hands",
    [
        "hands.engine.started",
        "hands.engine.before_tool",
        "hands.engine.after_tool",
        "hands.engine.before_finish",
        "hands.engine.finished",
    ],
)

OUTPUT_SECONDS = 0.25
ALIVE_SECONDS = 0.05
LOST_TRIES = 5


@final
class Engine:
    """The executions of one incarnation.

    `ended(execution)` is called when a run is over, whatever came of it, with its slot free again.
    """

    def __init__(
        self,
        ledger: Ledger,
        tools: Tools,
        speaker: Speaker,
        slots: Slots,
        *,
        clock: Clock,
        metrics: HandsMetrics,
        ended: Callable[[str], object],
        large: Large | None = None,
    ) -> None:
        self._ledger = ledger
        self._tools = tools
        self._speaker = speaker
        self._slots = slots
        self._clock = clock
        self._metrics = metrics
        self._ended = ended
        self._large = large
        self._running: dict[str, Running] = {}
        self._entered: dict[str, int] = {}
        self._backoff = Backoff(first_seconds=0.05, most_seconds=2.0)
        self._closed = False
        self.host: Host | None = None
        self.accepting = False

    def adopt(self, host: Host) -> None:
        """Own as `host` from now on; what an earlier incarnation ran is no longer ours."""
        self.host = host
        self._running = {}
        self._entered = {}
        self.accepting = True

    def disown(self) -> None:
        """Ownership is lost: own nothing more, and stop what can be stopped."""
        self.accepting = False
        for run in self._running.values():
            run.cancel()

    @property
    def running(self) -> Mapping[str, Running]:
        return self._running

    @property
    def unfinished(self) -> int:
        """Tools that were entered and whose end is not recorded yet."""
        return len(self._entered)

    @property
    def free(self) -> int:
        return self._slots.free_now if self.accepting else 0

    def match(self, command: StartCommand) -> ToolBinding | None:
        """The binding that the command was made for, where this host has exactly that one."""
        binding = self._tools.find(command.tool, command.tool_version)
        return binding if binding and binding.digest == command.binding_digest else None

    @property
    def by_tenant(self) -> bool:
        """Whether the number of tools of one tenant is limited."""
        return self._slots.tenant_total > 0

    def take(self, binding: ToolBinding, namespace: str) -> bool:
        """Reserve a slot; `launch` or `give_back` follows."""
        host = self.host
        if not self.accepting or host is None or not host.alive():
            return False
        return self._slots.take(binding, namespace)

    def give_back(self, binding: ToolBinding, namespace: str) -> None:
        self._slots.free(binding, namespace)

    def obstacle(self, tool: str, version: str, namespace: str) -> str | None:
        """Which limit of this host keeps such a call waiting now, in words."""
        binding = self._tools.find(tool, version)
        return None if binding is None else self._slots.obstacle(binding, namespace)

    def has_entered(self, execution: str, token: int) -> bool:
        """Whether this incarnation entered the tool and did not record its end."""
        return self._entered.get(execution) == token

    def forget_entry(self, execution: str) -> None:
        self._entered.pop(execution, None)

    def launch(
        self, command: StartCommand, binding: ToolBinding, *, token: int, attempt: int, host: str
    ) -> None:
        """Run what a committed transaction gave to `host`; its slot is reserved already."""
        ours = self.host is not None and self.host.id == host and not self._closed
        if not ours or command.execution in self._running:
            self._slots.free(binding, command.namespace)
            return
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._flush_soon, run)

        run = Running(
            command=command,
            binding=binding,
            attempt=attempt,
            token=token,
            host=host,
            output=Output(command.execution, attempt, wake=wake),
            observe=self._observe,
        )
        self._running[command.execution] = run
        run.task = loop.create_task(self._run(run), name=f"execution:{command.execution}")

    def cancel(self, execution: str) -> None:
        """A cancel was recorded; whoever runs the execution here is told."""
        run = self._running.get(execution)
        if run is not None:
            run.cancel()

    async def drain(self) -> None:
        """Start nothing new and wait for what runs, but not for the tool that asks for it."""
        self.accepting = False
        mine = current_run.get()
        asking = mine.command.execution if mine is not None else ""
        while tasks := [
            run.task
            for execution, run in self._running.items()
            if run.task is not None and execution != asking
        ]:
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Start nothing new. What runs is left alone: its host is about to be released."""
        self.accepting = False
        self._closed = True
        self._tools.close()

    async def _run(self, run: Running) -> None:
        execution = run.command.execution
        try:
            await faults.apoint("hands.engine.started")
            if self._closed:
                await self._hand_back(run)
            elif await self._has_arguments(run) and await self._may_enter(run):
                faults.point("hands.engine.before_tool")
                await self._enter(run)
        except Exception as error:
            _log.error("an execution was left to the scan", execution=execution, error=error)
        finally:
            if self._running.get(execution) is run:
                del self._running[execution]
            self._slots.free(run.binding, run.command.namespace)
            self._ended(execution)

    async def _has_arguments(self, run: Running) -> bool:
        """Get what stands in the object store; where that is lost, the execution ends without effect."""
        command = run.command
        tries = lost = 0
        while command.arguments_ref is not None and not self._closed:
            try:
                run.command = await whole(self._large, command, command.arguments_ref, patient=True)
                return True
            except LOST as error:
                lost += 1
                if lost == LOST_TRIES:
                    await self._finish(run, never_entered(error))
                    return False
            except Unavailable as error:
                _log.warning("arguments wait for the object store", cause="fetch", error=error)
            tries += 1
            await self._clock.sleep(self._backoff.after(tries))
        if self._closed:
            await self._hand_back(run)
        return not self._closed

    async def _may_enter(self, run: Running) -> bool:
        """Whether this host still owns the execution as far as it can know: it may have been frozen."""
        host = self.host
        while host is not None and host.id == run.host and not host.lost.is_set():
            if host.alive():
                return True
            await self._clock.sleep(ALIVE_SECONDS)
        return False

    async def _hand_back(self, run: Running) -> None:
        """It came too late to be entered here, so that any host may start it."""
        unit = Abandon(
            id=run.command.execution,
            host=run.host,
            token=run.token,
            entered=False,
            speaker=self._speaker,
            now=self._clock.now_ms(),
        )
        await self._ledger.commit(abandon, unit)

    async def _enter(self, run: Running) -> None:
        execution = run.command.execution
        self._entered[execution] = run.token
        began = self._clock.monotonic()
        outcome = await self._tools.run(run)
        self._metrics.seconds.observe(self._clock.monotonic() - began, self._metrics.route)
        await faults.apoint("hands.engine.after_tool")
        sequence = await self._finish(run, outcome)
        await faults.apoint("hands.engine.finished")
        self._entered.pop(execution, None)
        self._count(outcome, sequence)

    async def _finish(self, run: Running, outcome: Ended) -> int | None:
        if run.appends:
            # The seal covers them, so they must stand in the ledger before it.
            await asyncio.wait(run.appends)
        pages, seal = run.output.close()
        failures = 0
        while True:
            result = outcome.result
            if seal is not None:
                result = result.model_copy(update={"output": seal})
            try:
                unit = await self._unit(run, outcome, result, pages, seal)
                await faults.apoint("hands.engine.before_finish")
                return await self._ledger.commit(finish, unit)
            except WrongLedger:
                raise
            except Unavailable as error:
                # The tool has run: its result is kept until the ledger takes it.
                if self._closed:
                    raise
                failures += 1
                _log.warning("a result waits for the ledger", cause="finish", error=error)
                await self._clock.sleep(self._backoff.after(failures))
            except NerveError as error:
                if result.placeholder is not None:
                    raise
                outcome = _storable(outcome, error)

    async def _unit(
        self,
        run: Running,
        outcome: Ended,
        result: ExecutionResult,
        pages: Sequence[Page],
        seal: OutputSeal | None,
    ) -> Finish:
        return Finish(
            id=run.command.execution,
            host=run.host,
            token=run.token,
            attempt=run.attempt,
            move=outcome.move,
            result=result,
            result_ref=await stowed(self._large, run.command, result),
            pages=pages,
            seal=seal,
            speaker=self._speaker,
            now=self._clock.now_ms(),
        )

    def _observe(self, run: Running, outcome: Ended) -> None:
        if not self._closed:
            asyncio.get_running_loop().create_task(self._keep(run, outcome), name="observation")

    async def _keep(self, run: Running, outcome: Ended) -> None:
        unit = Observation(
            execution=run.command.execution,
            source="late_thread",
            host=run.host,
            token=run.token,
            attempt=run.attempt,
            move=outcome.move,
            result=outcome.result,
            now=self._clock.now_ms(),
        )
        try:
            await self._ledger.commit(observe, unit)
        except NerveError as error:
            _log.warning("a late result was not kept", cause="observation", error=error)

    def _count(self, outcome: Ended, sequence: int | None) -> None:
        route = self._metrics.route
        if sequence is None:
            self._metrics.observations.add(route)
            _log.warning("a result came after its execution was given away", cause="observation")
            return
        self._metrics.executions.add(route, outcome.move.state, outcome.move.effect)

    def _flush_soon(self, run: Running) -> None:
        self._clock.call_later(OUTPUT_SECONDS, lambda: self._flush(run))

    def _flush(self, run: Running) -> None:
        if self._closed or self._running.get(run.command.execution) is not run:
            return
        pages = run.output.take()
        if pages:
            unit = Append(
                id=run.command.execution,
                host=run.host,
                token=run.token,
                attempt=run.attempt,
                pages=pages,
            )
            task = asyncio.get_running_loop().create_task(self._append(unit), name="output")
            run.appends.add(task)
            task.add_done_callback(run.appends.discard)

    async def _append(self, unit: Append) -> None:
        failures = 0
        while not self._closed:
            try:
                await self._ledger.commit(append_output, unit)
                return
            except Unavailable as error:
                failures += 1
                _log.warning("output waits for the ledger", cause="output", error=error)
                await self._clock.sleep(self._backoff.after(failures))


def _storable(outcome: Ended, error: NerveError) -> Ended:
    """The same end with a placeholder for what the ledger did not take."""
    result = placeholder_result(error)
    return Ended(move=replace(outcome.move, code=result.placeholder, reason=None), result=result)
