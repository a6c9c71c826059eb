"""The acts of the demo: each waits for a fact, kills the process in which it happened, and goes on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from nerve.brain.views import RunView, StepView, ToolView
from nerve.brain.watch import TurnResult
from nerve.common.clock import Clock
from nerve.deploy.client import Client
from nerve.deploy.demo import places
from nerve.deploy.demo.incident import AFTER_PAGE, AGENT, BEFORE_PAGE, READING, paged
from nerve.deploy.demo.processes import Child, DemoFailed, Processes
from nerve.deploy.demo.proof import read
from nerve.deploy.demo.scenario import FIRST, QUESTION, SECOND
from nerve.deploy.demo.voice import Tone, Voice
from nerve.deploy.demo.watcher import Watcher, short
from nerve.deploy.show import all_runs, all_steps
from nerve.hands.operations import ExecutionReconciliation, ExecutionStore
from nerve.protocol.execution import (
    Effect,
    ExecutionResult,
    ExecutionState,
    Failure,
    value_result,
)
from nerve.protocol.identity import SessionKey

SLOTS = 2
ROUTE = "hands"
SESSION = SessionKey("local", "demo")
REQUEST = "demo"
ANSWERED = "brain.advance.after_commit"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the ledgers say at the end, of which the proof uses nothing.

    `doubts` are the times in ms in which nobody knew an outcome.
    """

    result: TurnResult
    runs: Sequence[RunView]
    steps: Sequence[StepView]
    tools: Sequence[ToolView]
    doubts: Sequence[tuple[int, int]]
    first_hands: int


@final
class Story:
    def __init__(self, root: Path, processes: Processes, voice: Voice, clock: Clock) -> None:
        self._root = root
        self._state = root / places.STATE
        self._processes = processes
        self._voice = voice
        self._clock = clock
        self._doubts: list[tuple[int, int]] = []

    async def begin(self) -> tuple[Child, Child]:
        """Start the three processes; Brain and Hands are armed to stand still at the first facts."""
        self._voice.act(1, "Three processes")
        model = self._processes.model()
        await self._processes.model_ready(model)
        self._started(model, "answers from a script and logs every request")
        hands = self._processes.hands(SLOTS, f"{READING}=stop@2")
        brain = self._processes.brain(f"{ANSWERED}=stop@1")
        await self._processes.ready(hands)
        self._started(hands, f"runs the tools, {SLOTS} at a time")
        await self._processes.ready(brain)
        self._started(brain, "runs the agent")
        return brain, hands

    async def play(self, at: Client, brain: Child, hands: Child) -> Outcome:
        """From the question to the answer, through four kills."""
        session = await at.runtime.session(SESSION, AGENT)
        turn = await session.submit(REQUEST, QUESTION)
        self._say("you", QUESTION)
        async with Watcher(turn, self._voice, self._clock, self._processes) as watcher:
            await self._kill_brain(watcher, brain)
            first = hands
            hands = await self._kill_waiting(watcher, hands)
            hands = await self._kill_after_effect(at, watcher, hands)
            await self._kill_before_effect(at, watcher, hands)
            self._voice.act(6, "The same Turn answers")
            await watcher.until_ended()
        return Outcome(
            result=await turn.result(),
            runs=await all_runs(turn),
            steps=await all_steps(turn),
            tools=await turn.tools(),
            doubts=self._doubts,
            first_hands=first.pid,
        )

    async def _kill_brain(self, watcher: Watcher, brain: Child) -> None:
        self._voice.act(2, "Kill the Brain right after a model answer was committed")
        await self._processes.stopped_at(brain, ANSWERED)
        self._kill(brain, "the answer is in its ledger and nothing was done with it")
        again = self._processes.brain()
        await self._processes.ready(again)
        self._started(again, "takes its place; the answer is not asked for again")
        await self._received(watcher, 1)

    async def _kill_waiting(self, watcher: Watcher, hands: Child) -> Child:
        self._voice.act(3, "Kill the Hands while commands wait for a slot")
        await self._processes.stopped_at(hands, READING)
        self._kill(hands, "in the middle of two tools that only read")
        states = await self._states(watcher)
        waiting = [name for name, state in states if state == ExecutionState.ADMITTED]
        if not waiting:
            raise DemoFailed(f"no command waited for a slot; they were {states}")
        self._say("hands", f"waiting for a slot when it died: {', '.join(waiting)}")
        again = self._processes.hands(SLOTS, f"{AFTER_PAGE}=stop@1")
        await self._processes.ready(again)
        self._started(again, "takes its place: those run once, now; what only reads may run again")
        await self._received(watcher, 1 + len(states))
        return again

    async def _kill_after_effect(self, at: Client, watcher: Watcher, hands: Child) -> Child:
        self._voice.act(4, "Kill the Hands in a tool that must not be repeated, after its effect")
        await self._processes.stopped_at(hands, AFTER_PAGE)
        self._kill(hands, "the page was sent, and nobody wrote down that it was")
        again = self._processes.hands(SLOTS, f"{BEFORE_PAGE}=stop@1")
        execution = await self._unknown(watcher, again, 1)
        found = self._effect_of(execution)
        if found is None:
            raise DemoFailed(f"{places.EFFECTS} has no line of {execution}, which took effect")
        self._say("you", f"looked from outside, and it happened: {found}")
        what = _verdict(execution, ExecutionState.SUCCEEDED, found, value_result(paged(FIRST)))
        await self._reconcile(at, watcher, execution, what, hands)
        return again

    async def _kill_before_effect(self, at: Client, watcher: Watcher, hands: Child) -> None:
        self._voice.act(5, "The same before its effect")
        await self._processes.stopped_at(hands, BEFORE_PAGE)
        self._kill(hands, "the page was not sent; from inside the ledger this looks the same")
        again = self._processes.hands(SLOTS)
        execution = await self._unknown(watcher, again, 2)
        if self._effect_of(execution) is not None:
            raise DemoFailed(f"{places.EFFECTS} has a line of {execution}, which took no effect")
        count = len(read(self._root / places.EFFECTS))
        missing = f"none of the {count} lines of {places.EFFECTS} is of this execution"
        self._say("you", f"looked from outside, and it did not happen: {missing}")
        failure = Failure(code="not_delivered", message=f"the page to {SECOND} never left")
        result = ExecutionResult(stated="error", failure=failure)
        what = _verdict(execution, ExecutionState.FAILED, missing, result)
        await self._reconcile(at, watcher, execution, what, hands)

    def _started(self, child: Child, what: str) -> None:
        text = f"pid {child.pid} {what}"
        self._say(child.role.value, text, event="started", role=child.role, pid=child.pid)

    def _kill(self, child: Child, where: str) -> None:
        child.kill()
        text = f"SIGKILL to the {child.role.capitalize()}, pid {child.pid}: {where}"
        self._voice.say("KILL", text, Tone.KILL, event="kill", role=child.role, pid=child.pid)

    async def _received(self, watcher: Watcher, number: int) -> None:
        await watcher.until(
            lambda: len(watcher.heard("tool.received")) >= number,
            f"{number} results should be with the Brain",
        )

    async def _states(self, watcher: Watcher) -> list[tuple[str, str]]:
        """What the Hands ledger says of every tool of the Turn that has no result yet."""
        found: list[tuple[str, str]] = []
        async with await ExecutionStore.open(self._state, route=ROUTE) as store:
            for tool in await watcher.turn.tools():
                if tool.received_at is None:
                    state = str((await store.find(tool.execution))["state"])
                    found.append((f"{short(tool.execution)} {tool.tool}", state))
        return found

    async def _unknown(self, watcher: Watcher, hands: Child, number: int) -> str:
        """Wait for the `number`-th UNKNOWN outcome; say why, and that nothing runs again."""
        await watcher.until(
            lambda: len(watcher.heard("tool.unknown")) >= number,
            "the outcome of the interrupted tool should be UNKNOWN",
        )
        await self._processes.ready(hands)
        execution = str(watcher.heard("tool.unknown")[number - 1].payload["execution_id"])
        for line in (await watcher.turn.status()).why:
            self._say("why", line, Tone.DOUBT)
        entries = [
            line for line in read(self._root / places.CALLS) if line["execution"] == execution
        ]
        if len(entries) != 1:
            raise DemoFailed(f"{execution} was entered {len(entries)} times")
        self._started(hands, f"takes its place, and does not run {short(execution)} again")
        return execution

    def _effect_of(self, execution: str) -> str | None:
        """The line of an execution in the effects file: what anybody can see from outside."""
        for number, line in enumerate(read(self._root / places.EFFECTS), 1):
            if line["execution"] == execution:
                return f"line {number} of {places.EFFECTS}: {line['effect']} to {line['for']}"
        return None

    async def _reconcile(
        self,
        at: Client,
        watcher: Watcher,
        execution: str,
        what: ExecutionReconciliation,
        killed: Child,
    ) -> None:
        flag = f"--{what.state.lower()}"
        self._say("you", f"as by: nerve reconcile {execution} {flag} --evidence '...'")
        async with await ExecutionStore.open(self._state, route=ROUTE) as store:
            await store.reconcile(await store.claim(execution, "demo"), what)
            at.backend.wakeups.ring(f"hands/{store.ledger_id}/changed")
        await watcher.until(
            lambda: watcher.heard("tool.received", execution),
            "the Brain should hear of the reconciliation",
        )
        assert killed.died is not None
        self._doubts.append((killed.died, watcher.heard("tool.received", execution)[0].at))

    def _say(self, who: str, text: str, tone: Tone = Tone.PLAIN, **fields: Any) -> None:
        self._voice.say(who, text, tone, **fields)


def _verdict(
    execution: str, state: ExecutionState, evidence: str, result: ExecutionResult
) -> ExecutionReconciliation:
    return ExecutionReconciliation(
        request_id=f"demo-{execution}",
        operator="demo",
        evidence=evidence,
        state=state,
        effect=Effect.COMPLETED if state is ExecutionState.SUCCEEDED else Effect.NONE,
        result=result,
        # Where the system cannot show it: its parent has reaped that process.
        owner_gone=True,
    )
