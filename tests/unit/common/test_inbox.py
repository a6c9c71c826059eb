"""The inbox: everything that arrived stands in one state, and only then is it acknowledged."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nerve.common import inbox
from nerve.common.broker.port import Delivery
from nerve.common.clock import VirtualClock
from nerve.common.inbox import InboxLoop, Refusal
from nerve.common.sql import SqliteLedger, Tx, law, sql
from nerve.protocol.errors import DiskFull
from support.item_ledger import item_ledger
from support.waiting import until

ROWS = sql("select execution, sequence, state, tries, reason from inbox order by sequence")
REFUSED = sql("select id, topic, head from refused order by id")


@law("test.apply", keys=lambda unit: ())
async def apply(tx: Tx, unit: Callable[[Tx], Awaitable[Any]]) -> Any:
    return await unit(tx)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncGenerator[SqliteLedger, None]:
    async with item_ledger(tmp_path / "t.db") as opened:
        yield opened


async def held(ledger: SqliteLedger, sequence: int, *, next_at: int = 10) -> None:
    async def act(tx: Tx) -> None:
        await inbox.hold(
            tx,
            execution="e",
            sequence=sequence,
            envelope=b"%d" % sequence,
            reason="a gap",
            next_at=next_at,
            now=1,
        )

    await ledger.commit(apply, act)


async def states(ledger: SqliteLedger) -> list[tuple[int, str, int]]:
    async def query(tx: Tx) -> list[tuple[int, str, int]]:
        return [(row["sequence"], row["state"], row["tries"]) for row in await tx.all(ROWS)]

    return await ledger.read(query)


@pytest.mark.rule(15)
async def test_what_came_too_early_is_held_once_and_released_up_to_what_was_applied(
    ledger: SqliteLedger,
) -> None:
    for sequence in (3, 2, 3, 5):
        await held(ledger, sequence)
    assert await states(ledger) == [(2, "HELD", 0), (3, "HELD", 0), (5, "HELD", 0)]

    async def look(tx: Tx) -> list[bytes]:
        return [row["envelope"] for row in await inbox.held(tx, "e")]

    assert await ledger.read(look) == [b"2", b"3", b"5"]

    async def act(tx: Tx) -> None:
        await inbox.release(tx, execution="e", sequence=3)

    await ledger.commit(apply, act)
    assert await states(ledger) == [(5, "HELD", 0)]


@pytest.mark.rule(15)
async def test_a_try_is_counted_before_it_is_made_and_the_last_one_quarantines(
    ledger: SqliteLedger,
) -> None:
    await held(ledger, 2, next_at=10)
    await held(ledger, 3, next_at=50)

    async def due(tx: Tx) -> list[int]:
        return [row["sequence"] for row in await inbox.due(tx, now=20, limit=10)]

    assert await ledger.read(due) == [2]

    async def later(tx: Tx) -> None:
        unit = inbox.Try(execution="e", sequence=2, tries=0, next_at=100)
        # Whoever comes second with the same count finds that the try is another's.
        assert [await inbox.begin_try.apply(tx, unit) for _ in range(2)] == [True, False]

    await ledger.commit(apply, later)
    assert await ledger.read(due) == []
    assert (await states(ledger))[0] == (2, "HELD", 1)

    async def set_aside(tx: Tx) -> None:
        for execution, sequence in (("e", 2), ("never held", 9)):
            await inbox.quarantine(
                tx,
                execution=execution,
                sequence=sequence,
                envelope=b"x",
                reason="poison",
                now=5,
            )

    await ledger.commit(apply, set_aside)
    assert await states(ledger) == [(2, "QUARANTINED", 1), (3, "HELD", 0), (9, "QUARANTINED", 0)]
    assert await ledger.read(due) == []


@pytest.mark.rule(15)
async def test_refusals_are_kept_in_bounds(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "REFUSED_ROWS_MAX", 20)
    refusal = Refusal(topic="t", code="c", reason="r", head=b"x" * 5000, now=1)
    futures = [ledger.submit(inbox.refuse, refusal) for _ in range(100)]
    await asyncio.gather(*futures)

    async def query(tx: Tx) -> list[tuple[int, int]]:
        return [(row["id"], len(row["head"])) for row in await tx.all(REFUSED)]

    assert await ledger.read(query) == [(id, 512) for id in range(81, 101)]


@dataclass
class Queue:
    """A consumer over a list: what is not acknowledged comes again."""

    waiting: list[Delivery]
    acked: list[object] = field(default_factory=list[object])
    back: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False

    async def receive(self) -> Sequence[Delivery]:
        while not self.waiting:
            self.back.clear()
            await self.back.wait()
        taken, self.waiting = self.waiting, []
        return taken

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.acked += [each.token for each in deliveries]

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self.waiting += deliveries
        self.back.set()

    def poke(self) -> None:
        self.back.set()

    async def close(self) -> None:
        self.closed = True


@pytest.mark.report("U37")
@pytest.mark.law(1)
async def test_a_ledger_that_is_away_is_asked_ever_more_rarely_and_nothing_is_acknowledged(
    ledger: SqliteLedger,
) -> None:
    queue = Queue([Delivery(topic="t", body=b"a\nb", token=1)])
    tried: list[int] = []
    clock = VirtualClock()
    full = [True]

    async def accept(raws: Sequence[bytes]) -> None:
        tried.append(len(raws))
        if full:
            raise DiskFull("full")

    loop = InboxLoop(queue, accept, ledger, clock=clock)
    await loop.start()
    await until(lambda: tried, "it is tried")
    await clock.advance(60.0)
    assert 8 < len(tried) < 20
    assert queue.acked == []
    full.clear()
    await clock.advance(20.0)
    assert queue.acked == [1]
    await loop.close()
    assert queue.closed


@pytest.mark.law(1)
async def test_a_cancelled_loop_acknowledges_nothing_it_had_not_accepted(
    ledger: SqliteLedger,
) -> None:
    queue = Queue([Delivery(topic="t", body=b"a", token=1)])
    entered = asyncio.Event()

    async def accept(raws: Sequence[bytes]) -> None:
        entered.set()
        await asyncio.Event().wait()

    loop = InboxLoop(queue, accept, ledger, clock=VirtualClock())
    await loop.start()
    await asyncio.wait_for(entered.wait(), 5)
    await loop.close()
    assert queue.acked == []
