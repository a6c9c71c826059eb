"""What leaves and what arrives: never before the commit, never acknowledged before it, and once in the end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nerve.common.broker.memory import MemoryBroker
from nerve.common.broker.port import Delivery
from nerve.common.clock import SystemClock
from nerve.common.inbox import InboxLoop
from nerve.common.lifecycle import Backoff
from nerve.common.outbox import OutboxRow, Relay, depth, put
from nerve.common.sql import SqliteLedger, Tx, law
from nerve.protocol.errors import BrokerUnavailable, Conflict, LedgerUnavailable
from support.item_ledger import item_ledger
from support.waiting import until

QUICK = Backoff(first_seconds=0.01, most_seconds=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Messages of one transaction; `fail` raises after they were put."""

    numbers: Sequence[int]
    relay: Relay
    fail: bool = False


@law("test.send", keys=lambda unit: ())
async def send(tx: Tx, unit: Send) -> None:
    rows = [OutboxRow(id=f"{n:05d}", destination="t", envelope=b"%d" % n) for n in unit.numbers]
    await put(tx, rows, host="me", now=SystemClock().now_ms(), relay=unit.relay)
    if unit.fail:
        raise Conflict("it was not to be")


@dataclass(slots=True)
class Wire:
    """A publisher that can be away, or deliver and lose the confirm."""

    ledger: SqliteLedger
    away: bool = False
    lose_confirms: int = 0
    groups: list[list[bytes]] = field(default_factory=list[list[bytes]])
    undecided: list[bytes] = field(default_factory=list[bytes])

    async def publish(self, destination: str, envelopes: Sequence[bytes]) -> None:
        if self.away:
            raise BrokerUnavailable("the broker is away")
        committed, _ = await self.ledger.read(depth)
        if committed < len(envelopes):
            self.undecided += envelopes
        self.groups.append(list(envelopes))
        if self.lose_confirms:
            self.lose_confirms -= 1
            raise BrokerUnavailable("no confirm came")

    @property
    def sent(self) -> list[int]:
        return [int(each) for group in self.groups for each in group]


@asynccontextmanager
async def world(place: Path) -> AsyncGenerator[tuple[SqliteLedger, Relay, Wire]]:
    async with item_ledger(place / "items.db") as ledger:
        wire = Wire(ledger)
        relay = Relay(ledger, wire.publish, host=lambda: "me", clock=SystemClock(), backoff=QUICK)
        try:
            yield ledger, relay, wire
        finally:
            await relay.close()


async def kept(ledger: SqliteLedger) -> int:
    return (await ledger.read(depth))[0]


@pytest.mark.law(2)
@pytest.mark.capability("E2.1")
async def test_nothing_of_a_transaction_that_was_undone_ever_leaves(tmp_path: Path) -> None:
    async with world(tmp_path) as (ledger, relay, wire):
        with pytest.raises(Conflict):
            await ledger.commit(send, Send(numbers=[1, 2], relay=relay, fail=True))
        await ledger.commit(send, Send(numbers=[3], relay=relay))
        await until(lambda: wire.sent, "the committed one left")
        assert await relay.drain(5)
        assert (wire.sent, wire.undecided, relay.depth()) == ([3], [], 0)


@pytest.mark.law(2)
@pytest.mark.report("U08", "U37")
async def test_what_waits_for_an_absent_broker_stays_and_leaves_in_order_and_in_groups(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (ledger, relay, wire):
        wire.away = True
        for number in range(200):
            # Whoever commits does not wait for the broker.
            await asyncio.wait_for(ledger.commit(send, Send(numbers=[number], relay=relay)), 5)
        assert (await kept(ledger), wire.sent) == (200, [])
        wire.away = False
        await emptied(ledger)
        assert wire.sent == list(range(200))
        assert max(len(group) for group in wire.groups) <= 64


@pytest.mark.report("U38")
async def test_without_a_confirm_the_same_message_is_sent_again_and_forgotten_after_one(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (ledger, relay, wire):
        wire.lose_confirms = 2
        await ledger.commit(send, Send(numbers=[7], relay=relay))
        await emptied(ledger)
        assert wire.groups == [[b"7"]] * 3


async def emptied(ledger: SqliteLedger) -> None:
    async with asyncio.timeout(10):
        while await kept(ledger):
            await asyncio.sleep(0.01)


class Listening:
    """A consumer of two deliveries that says what was done with them, and in which order."""

    def __init__(self, said: list[str]) -> None:
        self.said = said
        self._left = [Delivery(topic="t", body=b"one\ntwo", token=1)]

    async def receive(self) -> Sequence[Delivery]:
        if self._left:
            return [self._left.pop()]
        await asyncio.Event().wait()
        raise AssertionError

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.said.append("ack")

    def nack(self, deliveries: Sequence[Delivery]) -> None:
        self.said.append("nack")
        self._left += deliveries

    def poke(self) -> None:
        """There is nothing to look at."""

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.law(1)
@pytest.mark.capability("E2.1")
@pytest.mark.report("U03")
async def test_a_message_is_acknowledged_only_after_it_was_accepted_however_long_that_takes(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    gate = asyncio.Event()
    fails = [True]

    async def accept(raws: Sequence[bytes]) -> None:
        said.append(f"accept {len(raws)}")
        await gate.wait()
        if fails and fails.pop():
            raise LedgerUnavailable("the ledger is away")
        said.append("committed")

    async with item_ledger(tmp_path / "items.db") as ledger:
        loop = InboxLoop(Listening(said), accept, ledger, clock=SystemClock(), backoff=QUICK)
        await loop.start()
        await until(lambda: said, "it arrived")
        assert said == ["accept 2"]
        gate.set()
        await until(lambda: said[-1] == "ack", "it was acknowledged")
        assert said == ["accept 2", "nack", "accept 2", "committed", "ack"]
        await loop.close()


@pytest.mark.report("U36")
async def test_a_publish_that_never_returns_ends_at_its_deadline_and_is_made_again(
    tmp_path: Path,
) -> None:
    broker = MemoryBroker(publish_seconds=0.05)
    await broker.open()
    async with item_ledger(tmp_path / "items.db") as ledger:

        async def publish(destination: str, envelopes: Sequence[bytes]) -> None:
            await broker.publish(destination, envelopes)

        relay = Relay(ledger, publish, host=lambda: "me", clock=SystemClock(), backoff=QUICK)
        stuck = broker.consume("t", "g", credit=lambda: 10)
        await ledger.commit(send, Send(numbers=[5], relay=relay))
        first = await stuck.receive()
        assert [each.body for each in first] == [b"5"]
        # Nobody acknowledges, so the publish meets its deadline, and the row is still there.
        again = await asyncio.wait_for(stuck.receive(), 5)
        assert [each.body for each in again] == [b"5"]
        stuck.ack([*first, *again])
        await emptied(ledger)
        await relay.close()
    await broker.close()
