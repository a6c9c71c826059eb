"""Follows the Turn of the demo from outside, tells what it hears, and waits for facts in it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self, cast, final

from nerve.brain.handles import Turn
from nerve.common.clock import Clock
from nerve.deploy.demo.processes import FACT_SECONDS, LOOK_SECONDS, DemoFailed, Processes
from nerve.deploy.demo.voice import Tone, Voice
from nerve.deploy.output import brief
from nerve.deploy.watching import sentence
from nerve.protocol.events import PublicEvent

_TONES = {
    "tool.unknown": Tone.DOUBT,
    "tool.reconciled": Tone.GOOD,
    "turn.recovery": Tone.DIM,
    "turn.completed": Tone.GOOD,
    "turn.failed": Tone.BAD,
}
_SPEAKERS = {"turn": "turn", "run": "turn", "message": "agent", "tool": "tool"}
_UNSAID = frozenset({"turn.waiting", "turn.queued", "tool.applied"})


@final
class Watcher:
    """Everything that was committed for a Turn so far."""

    def __init__(self, turn: Turn, voice: Voice, clock: Clock, processes: Processes) -> None:
        self.turn = turn
        self.events: list[PublicEvent] = []
        self._voice = voice
        self._clock = clock
        self._processes = processes
        self._task = asyncio.ensure_future(self._follow())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def heard(self, type: str, execution: str | None = None) -> Sequence[PublicEvent]:
        """Events of a type; of one execution where it is named."""
        return [
            event
            for event in self.events
            if event.type == type
            and execution in (None, cast("str", event.payload.get("execution_id")))
        ]

    async def until(self, fact: Callable[[], object], what: str) -> None:
        """Wait until a fact is committed. Raises DemoFailed where it is not, or a process is gone."""
        deadline = self._clock.monotonic() + FACT_SECONDS
        while not fact():
            self._check()
            if self._clock.monotonic() > deadline:
                why = " ".join((await self.turn.status()).why)
                raise DemoFailed(f"within {FACT_SECONDS:g} s, {what}: it did not. {why}")
            await self._clock.sleep(LOOK_SECONDS)

    async def until_told(self) -> None:
        """Wait until the last event was told."""
        await self.until(self._task.done, "the Turn should end")
        self._check()

    def _check(self) -> None:
        if self._task.done() and not self._task.cancelled():
            self._task.result()
        self._processes.check()

    async def _follow(self) -> None:
        async for event in self.turn.events():
            self.events.append(event)
            told = sentence(event)
            if told and event.type not in _UNSAID:
                self._voice.say(
                    _SPEAKERS.get(event.type.partition(".")[0], ""),
                    brief(told.replace(f"{self.turn.id}.", ""), 200),
                    _TONES.get(event.type, Tone.PLAIN),
                    event=event.type,
                    cursor=event.cursor,
                )
