"""Follows the Turn of the demo from outside, tells what it hears, and waits for facts in it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, final

from nerve.brain.handles import Turn
from nerve.common.clock import Clock
from nerve.deploy.demo.processes import FACT_SECONDS, LOOK_SECONDS, DemoFailed, Processes
from nerve.deploy.demo.voice import Tone, Voice
from nerve.deploy.output import brief
from nerve.protocol.content import Message
from nerve.protocol.events import PublicEvent

SAID_CHARACTERS = 150
Payload = Mapping[str, Any]


@final
class Watcher:
    """Everything that was committed for a Turn so far."""

    def __init__(self, turn: Turn, voice: Voice, clock: Clock, processes: Processes) -> None:
        self.turn = turn
        self.events: list[PublicEvent] = []
        self._voice = voice
        self._clock = clock
        self._processes = processes
        self._held: PublicEvent | None = None
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
            if event.type == type and execution in (None, event.payload.get("execution_id"))
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

    async def until_ended(self) -> None:
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
            held, self._held = self._held, None
            if held is not None and event.type != "turn.completed":
                self._tell(held)
            if event.type == "message.completed":
                # The last message is the answer, which is told whole at the end.
                self._held = event
            else:
                self._tell(event)

    def _tell(self, event: PublicEvent) -> None:
        line = _LINES.get(event.type)
        if line is not None:
            who, tone, words = line
            text = brief(words(event.payload), SAID_CHARACTERS)
            self._voice.say(who, text, tone, event=event.type, cursor=event.cursor)


def short(execution: object) -> str:
    """Executions of one Turn are told apart by their ends."""
    return str(execution).rpartition(".")[2]


def _call(payload: Payload) -> str:
    return f"{short(payload.get('execution_id'))} {payload.get('tool')}"


def _message(payload: Payload) -> str:
    return Message.model_validate(payload["message"], strict=False).text


def _received(payload: Payload) -> str:
    return f"{_call(payload)} {payload['state']}: {_message(payload)}"


def _failed(payload: Payload) -> str:
    failure: Payload = payload.get("failure") or {}
    return f"failed: {failure.get('code')} {failure.get('message')}"


_LINES: Mapping[str, tuple[str, Tone, Callable[[Payload], str]]] = {
    "turn.started": ("turn", Tone.PLAIN, lambda payload: "started"),
    "turn.recovery": (
        "turn",
        Tone.PLAIN,
        lambda payload: f"goes on in another Run, since {payload['reason']}",
    ),
    "turn.completed": ("turn", Tone.GOOD, lambda payload: "completed"),
    "turn.failed": ("turn", Tone.BAD, _failed),
    "message.completed": ("agent", Tone.PLAIN, _message),
    "tool.requested": ("agent", Tone.PLAIN, lambda payload: f"asks for {_call(payload)}"),
    "tool.received": ("tool", Tone.PLAIN, _received),
    "tool.unknown": (
        "tool",
        Tone.DOUBT,
        lambda payload: f"{_call(payload)} is UNKNOWN: {payload['reason']}",
    ),
}
