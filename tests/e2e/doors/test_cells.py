"""Two copies of one Brain ledger on one broker: each gets what it asked for, and both are named."""

import sqlite3
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nerve.brain.agents.react import ReactAgent, ScriptedModel
from nerve.brain.ledger.backend import LocalBackend, SessionBackend
from nerve.brain.ledger.postgres_backend import PostgresBackend
from nerve.brain.runtime import DurableRuntime
from nerve.common.broker import Broker, Consumer, Credit, SqliteBroker
from nerve.common.sql.postgres_source import Address, UrlSource
from nerve.common.sql.postgres_survey import survey as remote_survey
from nerve.common.sql.survey import survey
from nerve.common.wakeups import Doorbell
from nerve.hands.worker import WorkerRuntime
from nerve.protocol.catalog import Catalog
from nerve.protocol.identity import SessionKey
from nerve.protocol.signature import ToolContext
from support.servers.postgres import database, drop_database, make_database, with_database
from support.whole import QUICK, answer

PATIENT = replace(QUICK, inquiry_silence_seconds=60.0, repeat_first_seconds=60.0)
"""Nothing is asked again: what arrives arrives by its update."""
TURNS = 6


LANES = ("commands", "controls")


class Noting:
    """A broker that notes the topics it is asked for."""

    def __init__(self, under: Broker, names: dict[str, set[str]]) -> None:
        self._under = under
        self._names = names

    async def open(self) -> None:
        await self._under.open()

    async def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        self._names["published"].add(topic)
        await self._under.publish(topic, bodies)

    def consume(self, topic: str, group: str, *, credit: Credit) -> Consumer:
        self._names["consumed"].add(topic)
        return self._under.consume(topic, group, credit=credit)

    async def close(self) -> None:
        await self._under.close()


class Bench:
    """The Hands that both Brains speak to, and a queue file between all of them."""

    def __init__(self, place: Path, stack: AsyncExitStack) -> None:
        self.place = place
        self.effects: list[str] = []
        self._stack = stack
        self.names: dict[str, dict[str, set[str]]] = {
            side: {"published": set(), "consumed": set()} for side in ("brain", "hands")
        }
        self.catalog = Catalog(route="hands")

        @self.catalog.tool
        async def echo(text: str, context: ToolContext) -> str:
            self.effects.append(context.execution)
            return text

    async def broker(self, side: str) -> Broker:
        bell = Doorbell.open(self.place)
        self._stack.callback(bell.close)
        broker = Noting(SqliteBroker(self.place, bell), self.names[side])
        await broker.open()
        self._stack.push_async_callback(broker.close)
        return broker

    async def hands(self) -> None:
        worker = WorkerRuntime(
            self.place / "hands", self.catalog, broker=await self.broker("hands"), settings=PATIENT
        )
        await self._stack.enter_async_context(worker)

    async def brain(self, backend: SessionBackend) -> DurableRuntime:
        agent = ReactAgent("whole", version="1", model=ScriptedModel(answer), tools=self.catalog)
        runtime = DurableRuntime(
            backend, agents=[agent], broker=await self.broker("brain"), settings=PATIENT
        )
        return await self._stack.enter_async_context(runtime)


def copy_file(source: Path, target: Path) -> None:
    """A whole copy, with what still stands in the log beside the file."""
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


@asynccontextmanager
async def bench(place: Path) -> AsyncGenerator[Bench]:
    async with AsyncExitStack() as stack:
        made = Bench(place, stack)
        await made.hands()
        yield made


async def ask_both(one: DurableRuntime, two: DurableRuntime) -> None:
    turns = [
        await (await runtime.session(SessionKey("acme", f"{name}-{n}"), agent="whole")).submit(
            "r", "echo"
        )
        for n in range(TURNS)
        for name, runtime in (("one", one), ("two", two))
    ]
    for turn in turns:
        assert (await turn.result(30)).text == "the end"


@pytest.mark.timeout(90)
@pytest.mark.capability("E12.1", "E12.2")
@pytest.mark.rule(24)
async def test_a_copied_ledger_takes_no_update_of_the_original_and_both_are_named(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    async with bench(tmp_path) as here:
        async with LocalBackend.open(first) as backend:
            await (await here.brain(backend)).close()
        second.mkdir()
        copy_file(first / "brain.db", second / "brain.db")
        async with LocalBackend.open(first) as one, LocalBackend.open(second) as two:
            assert one.ledger.identity == two.ledger.identity
            assert one.seat != two.seat
            brains = await here.brain(one), await here.brain(two)
            # At its start the copy says that it stood elsewhere, before any message has come.
            [moved] = survey(second / "brain.db").notes
            assert one.seat in moved and two.seat in moved
            assert survey(first / "brain.db").notes == []
            await ask_both(*brains)
            assert len(here.effects) == len({*here.effects}) == 2 * TURNS
            named = [survey(each / "brain.db").notes for each in (first, second)]
            assert any("two ledgers share the cell" in note for notes in named for note in notes)
            for notes in named:
                assert all(one.seat in note and two.seat in note for note in notes)
            for brain in brains:
                await brain.close()


@pytest.mark.external
@pytest.mark.timeout(120)
@pytest.mark.capability("E12.1", "E12.2")
async def test_a_database_that_was_read_back_beside_the_original_is_told_from_it(
    tmp_path: Path,
) -> None:
    async with database() as url, bench(tmp_path) as here:
        async with await PostgresBackend.open(url) as backend:
            await (await here.brain(backend)).close()
        copy = await make_database(url, template=url)
        try:
            async with (
                await PostgresBackend.open(url) as one,
                await PostgresBackend.open(copy) as two,
            ):
                assert one.seat != two.seat
                brains = await here.brain(one), await here.brain(two)
                found = await remote_survey(UrlSource(Address(copy, None)))
                assert one.seat in found.notes[0] and two.seat in found.notes[0]
                await ask_both(*brains)
                assert len(here.effects) == len({*here.effects}) == 2 * TURNS
                for brain in brains:
                    await brain.close()
            async with await PostgresBackend.open(with_database(url, _name(url))) as again:
                assert again.seat == one.seat
        finally:
            await drop_database(copy)


def _name(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]


@pytest.mark.timeout(90)
@pytest.mark.capability("E9.4", "E1.1")
async def test_replicas_of_one_brain_share_ledger_group_and_seat(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with bench(tmp_path) as here:
        async with LocalBackend.open(state) as one, LocalBackend.open(state) as two:
            assert (one.seat, one.ledger.identity) == (two.seat, two.ledger.identity)
            brains = await here.brain(one), await here.brain(two)
            await ask_both(*brains)
            assert len(here.effects) == len({*here.effects}) == 2 * TURNS
            assert survey(state / "brain.db").notes == []
            # Nothing was configured, and no tenant is in a name: both sides derive the same.
            cell = one.ledger.identity.id
            asked, served = (here.names[side] for side in ("brain", "hands"))
            assert asked["consumed"] == served["published"] == {f"nerve.local.updates.{cell}"}
            assert served["consumed"] == {f"nerve.local.hands.{lane}" for lane in LANES}
            assert "nerve.local.hands.commands" in asked["published"] <= served["consumed"]
            for brain in brains:
                await brain.close()
