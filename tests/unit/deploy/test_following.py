"""Whoever follows a Turn gets to its end, however reading and ending fall together."""

from collections.abc import Awaitable, Callable

import pytest

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.watch import Watch
from nerve.deploy.testing import local_runtime
from nerve.protocol.identity import ThreadKey
from support.waiting import soon


@pytest.mark.capability("F1.1")
async def test_a_turn_that_ends_between_two_reads_is_followed_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[bool] = []
    really: Callable[[Watch, ThreadKey, str], Awaitable[bool]] = vars(Watch)["_ended"]

    async def late(self: Watch, thread: ThreadKey, turn: str) -> bool:
        """The first look was before the end; all that follows comes after it."""
        looks.append(await really(self, thread, turn))
        return looks[-1] and len(looks) > 1

    async with local_runtime(ReactAgent("a", model=ScriptedModel(["hi"]))) as runtime:
        turn = await (await runtime.session("s", "a")).submit("r", "hello")
        await turn.result(20)
        monkeypatch.setattr(Watch, "_ended", late)

        async def followed() -> list[str]:
            return [event.type async for event in turn.events()]

        types = await soon(followed(), 10)
        assert types[-1] == "run.ended" or "turn.completed" in types
        assert looks == [True, True]
