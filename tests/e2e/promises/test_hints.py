"""A hint is given after the commit that it is about: whoever looks at once finds what it means."""

import sqlite3
from pathlib import Path

import pytest

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.ledger.backend import LocalBackend, WithWakeups
from nerve.brain.runtime import DurableRuntime
from nerve.common.wakeups import Listener, LocalWakeups, Subscription
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.identity import SessionKey
from support.whole import QUICK, answer


class Looking:
    """Hints inside this process; at each ring another connection looks into the ledger."""

    def __init__(self, file: Path) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self._file = file
        self._under = LocalWakeups()

    def ring(self, channel: str) -> None:
        with sqlite3.connect(f"file:{self._file}?mode=ro", uri=True) as connection:
            row = connection.execute("select phase from turn").fetchone()
        connection.close()
        self.seen.append((channel.partition(":")[0], None if row is None else row[0]))
        self._under.ring(channel)

    def listen(self, channel: str, callback: Listener) -> Subscription:
        return self._under.listen(channel, callback)

    def close(self) -> None:
        self._under.close()


@pytest.mark.capability("E11.2")
@pytest.mark.law(9)
async def test_every_hint_follows_the_commit_that_it_is_about(tmp_path: Path) -> None:
    catalog = Catalog(route="hands")

    @catalog.tool
    async def echo(text: str) -> str:
        return text

    agent = ReactAgent("whole", version="1", model=ScriptedModel(answer), tools=catalog)
    async with LocalBackend.open(tmp_path) as own:
        looking = Looking(tmp_path / "brain.db")
        async with (
            WorkerRuntime(own.directory, catalog, settings=QUICK) as worker,
            DurableRuntime(
                WithWakeups(own, looking),
                agents=[agent],
                executors={"hands": worker.local_executor()},
                settings=QUICK,
            ) as runtime,
        ):
            turn = await runtime.submit(SessionKey("acme", "s"), "r", "echo", agent="whole")
            assert (await turn.result(20)).text == "the end"
    ready = [phase for kind, phase in looking.seen if kind == "brain"]
    ended = [phase for kind, phase in looking.seen if kind == "ended"]
    assert ready and None not in ready
    assert ended == ["COMPLETED"]
