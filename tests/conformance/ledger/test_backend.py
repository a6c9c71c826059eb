"""A directory as a backend: opened by one call, opened again, and closed by whoever opened it."""

from pathlib import Path

import pytest

from nerve.brain import DurableRuntime, LocalBackend
from support.brain_cell import KEY, QUICK, calling, catalog, function, hello
from support.fake_hands import FakeHands
from support.waiting import soon


class Borrowed(FakeHands):
    """Says whether somebody closed it."""

    closed = False

    async def close(self) -> None:
        self.closed = True


@pytest.mark.capability("G1.1")
@pytest.mark.capability("G1.2")
async def test_a_directory_is_opened_by_one_call_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with (
        LocalBackend.open(tmp_path / "state") as backend,
        DurableRuntime(backend, agents=[function(hello)], settings=QUICK) as runtime,
    ):
        session = await runtime.session(KEY, agent="agent")
        turn = await session.submit("r1", "one")
        assert (await soon(turn.result())).text == "hello one"
    backend = await LocalBackend.open(tmp_path / "state", create=False)
    async with DurableRuntime(backend, agents=[function(hello)], settings=QUICK) as runtime:
        again = await runtime.get_session(KEY).submit("r1", "one")
        assert again.id == turn.id
        next_one = await runtime.get_session(KEY).submit("r2", "two")
        assert (await soon(next_one.result())).text == "hello two"
    await backend.close()


@pytest.mark.capability("G7.2")
async def test_what_was_handed_in_stays_the_callers_to_close(tmp_path: Path) -> None:
    hands = Borrowed(auto=lambda command: "ok")
    async with LocalBackend.open(tmp_path / "state") as backend:
        agent = function(calling, tools=catalog())
        for round in range(2):
            executors = {"hands": hands}
            async with DurableRuntime(
                backend, agents=[agent], executors=executors, settings=QUICK
            ) as runtime:
                session = await runtime.session(KEY, agent="agent")
                turn = await session.submit(f"r{round}", "x")
                assert (await soon(turn.result())).text == "ok"
            assert not hands.closed
        reader = DurableRuntime(backend, settings=QUICK)
        assert len(await reader.get_session(KEY).thread().list_turns()) == 2
        await reader.close()
