"""Objects against their collector: no row is ever without its object, and what nobody wants goes."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from nerve.common import faults
from nerve.common.clock import VirtualClock
from nerve.common.large import Collector, Large, refer
from nerve.common.objects.files import FileObjects
from nerve.common.sql import SqliteLedger, Tx, law, sql
from nerve.protocol.errors import NotFound, TooLarge, Unavailable
from nerve.protocol.objects import Holds, ObjectRef
from support.item_ledger import item_ledger

USED = "select 1 from item where item.id = object.owner"
PUT = sql("insert into item (id, body) values (:id, x'')")
REMOVE = sql("delete from item where id = :id")
OBJECTS = sql("select owner, state from object order by owner")
NAMED = sql("select o.scope, o.digest, o.bytes from object o join item i on i.id = o.owner")
LIMIT = 1000


@dataclass(slots=True)
class Place:
    ledger: SqliteLedger
    store: FileObjects
    large: Large
    clock: VirtualClock

    def collector(self, grace_seconds: float = 60.0) -> Collector:
        return Collector(
            self.store, self.ledger, USED, grace_seconds=grace_seconds, clock=self.clock
        )

    async def stow(self, execution: str, text: str = "x" * LIMIT) -> ObjectRef:
        ref = await self.large.stow(
            text, namespace="n", session="s", execution=execution, holds=Holds.RESULT
        )
        assert ref is not None
        return ref

    async def states(self) -> list[tuple[str, str]]:
        async def query(tx: Tx) -> list[tuple[str, str]]:
            return [(row["owner"], row["state"]) for row in await tx.all(OBJECTS)]

        return await self.ledger.read(query)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncGenerator[Place]:
    clock = VirtualClock()
    store = FileObjects(tmp_path / "objects")
    await store.open()
    async with item_ledger(tmp_path / "t.db") as ledger:
        large = Large(store, ledger, inline_bytes=LIMIT, bytes_max=10 * LIMIT, clock=clock)
        yield Place(ledger, store, large, clock)
    await store.close()


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    refs: Sequence[ObjectRef]
    now: int


@law("test.own", keys=lambda unit: (unit.id,))
async def own(tx: Tx, unit: Row) -> None:
    """A row that refers to objects."""
    await refer(tx, unit.refs, now=unit.now)
    await tx.run(PUT, id=unit.id)


@law("test.disown", keys=lambda unit: (unit,))
async def disown(tx: Tx, unit: str) -> None:
    await tx.run(REMOVE, id=unit)


async def named(tx: Tx) -> list[ObjectRef]:
    """What rows refer to."""
    return [
        ObjectRef(scope=row["scope"], digest=row["digest"], bytes=row["bytes"])
        for row in await tx.all(NAMED)
    ]


@pytest.mark.capability("E7.2")
async def test_what_is_small_travels_and_what_is_too_large_is_refused(place: Place) -> None:
    async def stow(length: int) -> ObjectRef | None:
        return await place.large.stow(
            "x" * length, namespace="n", session="s", execution="e", holds=Holds.ARGUMENTS
        )

    assert await stow(LIMIT - 3) is None
    ref = await stow(LIMIT - 2)
    assert ref is not None and (ref.scope, ref.bytes) == ("n/s/e/arguments", LIMIT)
    assert await place.large.fetch(ref) == "x" * (LIMIT - 2)
    with pytest.raises(TooLarge, match="the arguments have 10001 bytes; the limit is 10000"):
        await stow(10 * LIMIT - 1)


@pytest.mark.rule(19)
@pytest.mark.report("U56")
@pytest.mark.capability("E7.2")
async def test_an_orphan_goes_after_its_grace_and_what_is_referred_to_stays(place: Place) -> None:
    orphan, kept = await place.stow("orphan"), await place.stow("kept")
    await place.ledger.commit(own, Row("kept", [kept], place.clock.now_ms()))
    await place.clock.advance(59)
    assert await place.collector().run_once() is False
    assert await place.states() == [("kept", "LIVE"), ("orphan", "STAGED")]
    await place.clock.advance(2)
    await place.collector().run_once()
    assert await place.states() == [("kept", "LIVE")]
    assert await place.large.fetch(kept) == "x" * LIMIT
    with pytest.raises(NotFound):
        await place.large.fetch(orphan)
    await place.ledger.commit(disown, "kept")
    await place.collector().run_once()
    assert await place.states() == []
    assert not await place.store.exists(kept)


@pytest.mark.rule(19)
async def test_an_object_that_is_being_deleted_is_referred_to_by_nobody_and_put_again_after(
    place: Place,
) -> None:
    ref = await place.stow("e")
    await place.clock.advance(61)
    with (
        faults.armed("common.large.condemned=raise"),
        pytest.raises(faults.InjectedFault),
    ):
        await place.collector().run_once()
    assert await place.states() == [("e", "DELETING")]
    with pytest.raises(Unavailable, match="is being deleted"):
        await place.ledger.commit(own, Row("e", [ref], place.clock.now_ms()))
    # Stowing it again waits until the deletion that was begun has been made.
    again = asyncio.create_task(place.stow("e"))
    await place.clock.advance(1)
    await place.collector().run_once()
    await place.clock.advance(10)
    assert await again == ref
    await place.ledger.commit(own, Row("e", [ref], place.clock.now_ms()))
    assert await place.large.fetch(ref) == "x" * LIMIT


@pytest.mark.rule(19)
@pytest.mark.report("U56")
async def test_writers_and_collectors_that_race_leave_no_row_without_its_object(
    place: Place,
) -> None:
    chance = random.Random(7)
    writers = 20
    refused = 0

    async def write(name: str) -> None:
        nonlocal refused
        while True:
            ref = await place.stow(name)
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)
            try:
                return await place.ledger.commit(own, Row(name, [ref], place.clock.now_ms()))
            except Unavailable:
                refused += 1

    async def collect() -> None:
        # Each look finds that a whole grace has passed: what is not referred to yet is taken.
        for _ in range(15):
            await place.clock.advance(61)
            await place.collector().run_once()
        while await place.collector().run_once():
            pass

    work = [write(f"e{number}") for number in range(writers)]
    collecting = asyncio.gather(collect(), collect())
    writing = asyncio.gather(*work)
    await collecting
    while not writing.done():
        # Whoever waits to put again what was being deleted looks once more.
        await place.collector(1e9).run_once()
        await place.clock.advance(1)
    await writing

    refs = await place.ledger.read(named)
    assert (len(refs), refused > 0) == (writers, True)
    for ref in refs:
        assert await place.large.fetch(ref) == "x" * LIMIT


@pytest.mark.report("U56")
@pytest.mark.parametrize("point", ["common.large.staged", "common.large.put"])
async def test_a_writer_that_dies_at_any_place_leaves_an_orphan_and_no_row(
    place: Place, point: str
) -> None:
    with (
        faults.armed(f"{point}=raise"),
        pytest.raises(faults.InjectedFault),
    ):
        await place.stow("e")
    assert await place.states() == [("e", "STAGED")]
    await place.clock.advance(61)
    await place.collector().run_once()
    assert await place.states() == []
