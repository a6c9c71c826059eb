"""The outbox and its relay: in order per destination, found by any scan, bounded in memory."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nerve.common.clock import VirtualClock
from nerve.common.lifecycle import Backoff
from nerve.common.outbox import SCAN_ROWS, WAITING_ROWS_MAX, OutboxRow, Relay, depth, put
from nerve.common.sql import SqliteLedger, Tx, law, sql
from support.item_ledger import item_ledger
from support.waiting import until

HOST = sql(
    "insert into host (id, state, role, pid, process_started, boot, offers, lease_ms,"
    " registered_at) values (:id, :state, 'test', 1, '', '', '{}', 1000, 1)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    rows: Sequence[OutboxRow]
    host: str | None = "me"
    relay: Relay | None = None
    now: int = 1


@law("test.send", keys=lambda unit: ())
async def send(tx: Tx, unit: Send) -> None:
    await put(tx, unit.rows, host=unit.host, now=unit.now, relay=unit.relay)


@law("test.host", keys=lambda unit: ())
async def host(tx: Tx, unit: tuple[str, str]) -> None:
    await tx.run(HOST, id=unit[0], state=unit[1])


def row(number: int, destination: str = "d") -> OutboxRow:
    return OutboxRow(id=f"{number:06d}", destination=destination, envelope=b"%d" % number)


@dataclass
class Wire:
    """Publishes into a list, except what is away."""

    away: set[str] = field(default_factory=set[str])
    sent: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    tried: int = 0

    async def __call__(self, destination: str, envelopes: Sequence[bytes]) -> None:
        self.tried += 1
        if destination in self.away:
            raise ConnectionError(f"{destination} is away")
        self.sent += [(destination, each) for each in envelopes]


@dataclass
class Scene:
    ledger: SqliteLedger
    clock: VirtualClock
    wire: Wire
    relays: list[Relay] = field(default_factory=list[Relay])

    def relay(self, name: str = "me", **options: float) -> Relay:
        made = Relay(
            self.ledger,
            self.wire,
            host=lambda: name,
            clock=self.clock,
            backoff=Backoff(first_seconds=0.1, most_seconds=1.0),
            publish_seconds=options.get("publish_seconds", 10.0),
        )
        self.relays.append(made)
        return made

    async def kept(self) -> int:
        return (await self.ledger.read(depth))[0]

    async def emptied(self) -> None:
        async with asyncio.timeout(10):
            while await self.kept():
                await asyncio.sleep(0.005)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncGenerator[Scene, None]:
    async with item_ledger(tmp_path / "t.db") as ledger:
        made = Scene(ledger, VirtualClock(), Wire())
        yield made
        for relay in made.relays:
            await relay.close()


async def test_each_destination_has_its_own_order_and_a_slow_one_delays_only_itself(
    scene: Scene,
) -> None:
    relay = scene.relay()
    scene.wire.away.add("b")
    rows = [row(n, "ab"[n % 2]) for n in range(200)]
    await scene.ledger.commit(send, Send(rows=rows, relay=relay))
    await until(lambda: len(scene.wire.sent) == 100, "one destination is served")
    assert scene.wire.sent == [("a", b"%d" % n) for n in range(0, 200, 2)]
    scene.wire.away.clear()
    await scene.clock.advance(1.0)
    await until(lambda: len(scene.wire.sent) == 200, "the other one too")
    assert scene.wire.sent[100:] == [("b", b"%d" % n) for n in range(1, 200, 2)]
    await scene.emptied()


async def test_the_same_row_twice_is_one_row(scene: Scene) -> None:
    scene.wire.away.add("d")
    relay = scene.relay()
    for _ in range(3):
        await scene.ledger.commit(send, Send(rows=[row(1)], relay=relay))
    assert await scene.kept() == 1
    assert relay.depth() == 1


@pytest.mark.rule(16)
@pytest.mark.law(9)
@pytest.mark.parametrize("owner", [None, "released", "draining", "unheard of"])
async def test_rows_of_nobody_or_of_a_host_that_is_not_live_are_taken_at_once(
    scene: Scene, owner: str | None
) -> None:
    await scene.ledger.commit(host, ("released", "RELEASED"))
    await scene.ledger.commit(host, ("draining", "DRAINING"))
    await scene.ledger.commit(send, Send(rows=[row(1)], host=owner, now=scene.clock.now_ms()))
    await scene.relay().run_once()
    await until(lambda: scene.wire.sent == [("d", b"1")], "it is sent")
    await scene.emptied()


@pytest.mark.rule(16)
async def test_rows_of_a_live_host_are_its_own_and_its_old_ones_are_read_again(
    scene: Scene,
) -> None:
    await scene.ledger.commit(host, ("other", "LIVE"))
    await scene.ledger.commit(host, ("me", "LIVE"))
    now = scene.clock.now_ms()
    await scene.ledger.commit(send, Send(rows=[row(1)], host="other", now=now))
    await scene.ledger.commit(send, Send(rows=[row(2)], host="me", now=now))
    relay = scene.relay()
    await scene.clock.advance(4.9)
    await relay.run_once()
    assert relay.depth() == 0
    await scene.clock.advance(0.2)
    await relay.run_once()
    await until(lambda: scene.wire.sent == [("d", b"2")], "its old row is sent again")


async def test_a_dead_route_with_a_great_backlog_hides_nobody_elses_rows(scene: Scene) -> None:
    scene.wire.away.add("dead")
    backlog = [row(n, "dead") for n in range(3 * SCAN_ROWS)]
    await scene.ledger.commit(send, Send(rows=backlog, host=None, now=1))
    await scene.ledger.commit(send, Send(rows=[row(999_999, "d")], host=None, now=2))
    relay = scene.relay()
    for _ in range(4):
        await relay.run_once()
    await until(lambda: scene.wire.sent == [("d", b"999999")], "the living route is served")
    for _ in range(4):
        await relay.run_once()
    assert relay.depth() >= 3 * SCAN_ROWS


@pytest.mark.report("U48")
async def test_memory_is_bounded_while_a_broker_is_away_and_nothing_is_lost(scene: Scene) -> None:
    scene.wire.away.add("d")
    relay = scene.relay()
    count = WAITING_ROWS_MAX + 2 * SCAN_ROWS
    for first in range(0, count, 500):
        rows = [row(n) for n in range(first, first + 500)]
        await scene.ledger.commit(send, Send(rows=rows, relay=relay))
    assert relay.depth() <= WAITING_ROWS_MAX + SCAN_ROWS
    assert await scene.kept() == count
    scene.wire.away.clear()
    for _ in range(100):
        await scene.clock.advance(1.0)
        await relay.run_once()
        await asyncio.sleep(0.005)
        if len(set(scene.wire.sent)) == count:
            break
    assert len(set(scene.wire.sent)) == count
    await scene.emptied()


async def test_what_was_confirmed_is_not_sent_again_while_it_is_being_forgotten(
    scene: Scene,
) -> None:
    relay = scene.relay()
    await scene.ledger.commit(send, Send(rows=[row(1)], relay=relay))
    await until(lambda: scene.wire.sent, "it is sent")
    await relay.run_once()
    assert relay.depth() == 0
    await scene.clock.advance(4.0)
    await relay.run_once()
    assert relay.depth() == 0
    await scene.emptied()
    assert len(scene.wire.sent) == 1


@pytest.mark.report("U38")
async def test_a_publish_that_hangs_is_given_up_and_sent_again(scene: Scene) -> None:
    hanging = [True]

    async def publish(destination: str, envelopes: Sequence[bytes]) -> None:
        if hanging:
            hanging.pop()
            await asyncio.Event().wait()
        await scene.wire(destination, envelopes)

    relay = scene.relay(publish_seconds=10.0)
    relay._publish = publish  # pyright: ignore[reportPrivateUsage]
    await scene.ledger.commit(send, Send(rows=[row(1)], relay=relay))
    await until(lambda: not hanging, "the publish hangs")
    await scene.clock.advance(9.0)
    assert scene.wire.sent == []
    await scene.clock.advance(2.0)
    await until(lambda: scene.wire.sent == [("d", b"1")], "it is sent again")


async def test_an_outage_is_tried_ever_more_rarely(scene: Scene) -> None:
    scene.wire.away.add("d")
    relay = scene.relay()
    await scene.ledger.commit(send, Send(rows=[row(1)], relay=relay))
    await until(lambda: scene.wire.tried == 1, "it is tried")
    await scene.clock.advance(60.0)
    assert 50 < scene.wire.tried < 70


async def test_a_closed_relay_leaves_its_rows_for_others(scene: Scene) -> None:
    relay = scene.relay()
    scene.wire.away.add("d")
    await scene.ledger.commit(send, Send(rows=[row(1)], host=None, relay=relay))
    await relay.close()
    scene.wire.away.clear()
    await scene.ledger.commit(send, Send(rows=[row(2)], host=None, relay=relay))
    assert await scene.kept() == 2
    await scene.relay("heir").run_once()
    await until(lambda: len(scene.wire.sent) == 2, "the heir sends both")
