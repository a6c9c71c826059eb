"""When a host is dead, by what an observer has seen itself; on virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nerve.common import process
from nerve.common.clock import VirtualClock
from nerve.common.lease import Hosts, Sight, dead, require_live
from nerve.common.liveness import FileLifeline, FileLiveness, LockSight
from nerve.common.outbox import OutboxRow
from nerve.common.outbox import put as put_outbox
from nerve.common.settings import Settings
from nerve.common.sql import SqliteLedger, Tx, law, sql
from support.item_ledger import item_ledger

HELD, FREE, UNSEEN = LockSight.HELD, LockSight.FREE, LockSight.UNSEEN
SETTINGS = Settings(lease_seconds=30.0, heartbeat_seconds=5.0, sweep_seconds=0.25)
STATES = sql("select id, state from host order by registered_at, id")
BEAT = sql("update heartbeat set counter = counter + 1 where host = :id")
OUTBOX = sql("select id, host from outbox order by id")


def sight(lock: LockSight, **seen: float) -> Sight:
    return Sight(
        lock=lock,
        gone=bool(seen.get("gone", False)),
        still_seconds=seen.get("still", 0.0),
        looks=int(seen.get("looks", 100)),
        lock_lost_seconds=seen.get("lost", 0.0),
    )


@pytest.mark.rule(3)
@pytest.mark.parametrize(
    ("seen", "brain", "hands"),
    [
        (sight(HELD, still=29.0), False, False),
        (sight(HELD, still=30.0), True, True),
        (sight(HELD, still=30.0, looks=3), False, False),
        (sight(FREE), True, False),
        (sight(FREE, lost=4.9), True, False),
        (sight(FREE, lost=5.0), True, True),
        (sight(FREE, gone=True), True, True),
        (sight(UNSEEN), False, False),
        (sight(UNSEEN, lost=1000.0), False, False),
        (sight(UNSEEN, still=30.0), True, True),
        (sight(UNSEEN, gone=True), True, True),
    ],
)
def test_lock_and_heartbeat_decide_together(seen: Sight, brain: bool, hands: bool) -> None:
    assert dead(seen, lease_seconds=30.0, grace_seconds=0.0) is brain
    assert dead(seen, lease_seconds=30.0, grace_seconds=5.0) is hands


class Watched:
    """A `Liveness` over files whose locks look as the test says."""

    def __init__(self, locks: Path, ledger: Path) -> None:
        self._files = FileLiveness(locks, ledger)
        self.sights: dict[str, LockSight] = {}

    async def take(self, host: str) -> FileLifeline:
        return await self._files.take(host)

    async def look(self, hosts: Sequence[str]) -> Mapping[str, LockSight]:
        return {host: self.sights.get(host, HELD) for host in hosts}

    def forget(self, host: str) -> None:
        self._files.forget(host)

    def writer(self) -> int | None:
        return self._files.writer()


@dataclass
class Scene:
    """One observer, and other hosts that only beat when the test says so."""

    ledger: SqliteLedger
    clock: VirtualClock
    liveness: Watched
    taken: list[str] = field(default_factory=list[str])

    def hosts(self, *, grace: float = 0.0) -> Hosts:
        return Hosts(
            self.ledger,
            self.liveness,
            role="test",
            clock=self.clock,
            settings=SETTINGS,
            also=self._take,
            grace_seconds=grace,
        )

    async def _take(self, tx: Tx, host: str, now: int) -> None:
        self.taken.append(host)

    async def silent(self) -> str:
        """Another process's host whose heartbeat stands still from now on."""
        other = self.hosts()
        host = await other.register({})
        await host.stop_beating()
        return host.id

    async def beat(self, id: str) -> None:
        await self.ledger.commit(_beat, id)

    async def states(self) -> dict[str, str]:
        async def query(tx: Tx) -> dict[str, str]:
            return {row["id"]: row["state"] for row in await tx.all(STATES)}

        return await self.ledger.read(query)

    async def sweep(self, observer: Hosts, seconds: float, step: float = 0.25) -> None:
        """Let time pass, with a look at each step."""
        for _ in range(round(seconds / step)):
            await self.clock.advance(step)
            await observer.run_once()


@law("test.beat", keys=lambda unit: (unit,))
async def _beat(tx: Tx, unit: str) -> None:
    await tx.run(BEAT, id=unit)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncGenerator[Scene, None]:
    locks = tmp_path / "locks"
    locks.mkdir()
    async with item_ledger(tmp_path / "t.db") as ledger:
        yield Scene(ledger, VirtualClock(), Watched(locks, ledger.path))


@pytest.mark.rule(4)
async def test_a_heartbeat_that_stands_still_for_the_lease_releases(scene: Scene) -> None:
    id = await scene.silent()
    observer = scene.hosts()
    await observer.run_once()
    await scene.sweep(observer, 29.5)
    assert scene.taken == []
    await scene.sweep(observer, 1.0)
    assert scene.taken == [id]
    assert (await scene.states())[id] == "RELEASED"


@pytest.mark.rule(4)
async def test_each_beat_begins_the_lease_anew(scene: Scene) -> None:
    id = await scene.silent()
    observer = scene.hosts()
    for _ in range(5):
        await scene.sweep(observer, 25.0)
        await scene.beat(id)
    assert scene.taken == []


@pytest.mark.rule(4)
@pytest.mark.report("U102")
@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 10**12])
async def test_a_stepped_wall_clock_takes_nothing_away(scene: Scene, jump_ms: int) -> None:
    id = await scene.silent()
    observer = scene.hosts()
    await scene.sweep(observer, 5.0)
    scene.clock.step_wall(jump_ms)
    await scene.sweep(observer, 20.0)
    assert scene.taken == []
    await scene.sweep(observer, 10.0)
    assert scene.taken == [id]


@pytest.mark.rule(4)
@pytest.mark.report("U102")
async def test_an_observer_that_was_frozen_counts_nothing_of_it(scene: Scene) -> None:
    """Both were suspended: the first look after it must not call the other one dead."""
    id = await scene.silent()
    observer = scene.hosts()
    await scene.sweep(observer, 3.0)
    await scene.clock.advance(10_000.0)
    await scene.sweep(observer, 2.0)
    assert scene.taken == []
    await scene.beat(id)
    await scene.sweep(observer, 25.0)
    assert scene.taken == []


@pytest.mark.rule(3)
async def test_hands_have_a_grace_in_which_the_lock_may_come_back(scene: Scene) -> None:
    id = await scene.silent()
    observer = scene.hosts(grace=5.0)
    await observer.run_once()
    scene.liveness.sights[id] = FREE
    await scene.sweep(observer, 4.0)
    scene.liveness.sights[id] = HELD
    await scene.sweep(observer, 1.0)
    scene.liveness.sights[id] = FREE
    await scene.sweep(observer, 4.0)
    assert scene.taken == []
    await scene.sweep(observer, 2.0)
    assert scene.taken == [id]


@pytest.mark.rule(3)
async def test_a_brains_lost_lock_releases_at_once(scene: Scene) -> None:
    id = await scene.silent()
    scene.liveness.sights[id] = FREE
    await scene.hosts().run_once()
    assert scene.taken == [id]


@pytest.mark.rule(1)
@pytest.mark.rule(16)
async def test_release_frees_the_outbox_and_happens_once(scene: Scene) -> None:
    id = await scene.silent()

    @law("test.send", keys=lambda unit: ())
    async def send(tx: Tx, unit: str) -> None:
        row = OutboxRow(id="m1", destination="d", envelope=b"{}")
        await put_outbox(tx, [row], host=unit, now=1, relay=None)

    await scene.ledger.commit(send, id)
    scene.liveness.sights[id] = FREE
    first, second = scene.hosts(), scene.hosts()
    await first.run_once()
    await second.run_once()
    assert scene.taken == [id]

    async def query(tx: Tx) -> list[tuple[str, str | None]]:
        return [(row["id"], row["host"]) for row in await tx.all(OUTBOX)]

    assert await scene.ledger.read(query) == [("m1", None)]


@pytest.mark.rule(1)
async def test_only_a_live_incarnation_may_be_given_anything(scene: Scene) -> None:
    hosts = scene.hosts()
    host = await hosts.register({"a": 1})

    async def live(tx: Tx) -> bool:
        return await require_live(tx, host.id)

    assert await scene.ledger.read(live)
    (view,) = await hosts.live()
    assert (view.id, view.role, view.state, view.offers) == (host.id, "test", "LIVE", {"a": 1})
    assert process.is_same(view.mark)
    await hosts.drain()
    assert not await scene.ledger.read(live)
    await hosts.close()
    assert await hosts.live() == []
    assert not host.lost.is_set()
    assert (await scene.states())[host.id] == "RELEASED"


@pytest.mark.rule(5)
async def test_a_host_that_could_not_beat_for_its_lease_may_start_nothing(scene: Scene) -> None:
    hosts = scene.hosts()
    host = await hosts.register({})
    await host.stop_beating()
    await scene.clock.advance(29.0)
    assert host.alive()
    await scene.clock.advance(1.0)
    assert not host.alive()
    await hosts.close()


@pytest.mark.rule(6)
async def test_while_nobody_can_write_a_silent_heartbeat_says_nothing(scene: Scene) -> None:
    id = await scene.silent()
    observer = scene.hosts()
    host = await observer.register({})
    await host.stop_beating()
    await scene.sweep(observer, 100.0)
    assert scene.taken == []
    await observer.close()
    assert (await scene.states())[id] == "LIVE"


async def test_two_that_sweep_at_once_release_once(scene: Scene) -> None:
    ids = [await scene.silent() for _ in range(5)]
    for id in ids:
        scene.liveness.sights[id] = FREE
    await asyncio.gather(*(scene.hosts().run_once() for _ in range(4)))
    assert sorted(scene.taken) == sorted(ids)


@pytest.mark.rule(3)
@pytest.mark.parametrize("one_machine", [True, False])
async def test_another_boot_releases_at_once_only_where_it_is_a_boot_of_this_machine(
    scene: Scene, one_machine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that came up a moment ago shows no lock: a host on another machine may well live."""
    scene.ledger.one_machine = one_machine
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(process, "place", lambda: "another-boot:1")
        id = await scene.silent()
    scene.liveness.sights[id] = UNSEEN
    observer = scene.hosts()
    await scene.sweep(observer, 5.0)
    assert scene.taken == ([id] if one_machine else [])
    await scene.sweep(observer, 30.0)
    assert scene.taken == [id]
