"""Random walks over every law of the ledger by two hosts that die and come back; a seed replays exactly."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from nerve.brain.handles import Session
from nerve.brain.ledger.claim import Claimed, GiveBack, give_back, release_threads
from nerve.brain.ledger.repair import stuck
from nerve.brain.ledger.step_unit import Verdict
from nerve.brain.state.checkpoint import GENESIS, chained
from nerve.common.lease import Release, release
from nerve.common.sql import Row, sql
from nerve.protocol.errors import NerveError
from nerve.protocol.execution import ExecutionState
from support.brain_cell import KEY, rows
from support.brain_desk import ID, Desk, Desks
from support.fake_hands import FakeHands

THREADS = sql("select * from thread order by id")
TURNS = sql("select * from turn order by thread, ordinal")
INTENTS = sql("select * from intent")
JOURNAL = sql("select * from journal order by thread, position")
EVENTS = sql("select sequence, type, turn from event order by sequence")
LOST = sql("select turn, number from run where state = 'LOST'")
ENDS = {"turn.completed": "COMPLETED", "turn.cancelled": "CANCELLED", "turn.failed": "FAILED"}
S = ExecutionState


@dataclass
class Walk:
    """What two hosts believe; the ledger decides."""

    desks: Desks
    session: Session
    chance: random.Random
    hands: FakeHands = field(default_factory=FakeHands)
    owned: list[tuple[Desk, Claimed]] = field(default_factory=list[tuple[Desk, Claimed]])
    turns: list[str] = field(default_factory=list[str])
    executions: dict[str, int] = field(default_factory=dict[str, int])
    requests: int = 0

    async def step(self) -> None:
        acts: list[Callable[[], Awaitable[object]]] = [
            *(self.submit, self.submit, self.claim, self.claim, self.advance, self.advance),
            *(self.advance, self.deliver, self.deliver, self.deliver, self.cancel, self.release),
            *(self.give_back, self.again),
        ]
        await self.chance.choice(acts)()

    @property
    def desk(self) -> Desk:
        return self.chance.choice(self.desks)

    async def submit(self) -> None:
        thread = self.session.thread(self.chance.choice(("main", "side")))
        self.requests += 1
        self.turns.append((await thread.submit(f"r{self.requests}", "x")).id)

    async def again(self) -> None:
        """A client repeats a request it is not sure of."""
        if not self.requests:
            return
        number = self.chance.randint(1, self.requests)
        for name in ("main", "side"):
            try:
                turn = await self.session.thread(name).submit(f"r{number}", "x")
                assert turn.id == self.turns[number - 1]
            except NerveError as error:
                assert error.code == "request_conflict"

    async def claim(self) -> None:
        desk = self.desk
        for claimed in await desk.claim(ID, limit=self.chance.randint(1, 3)):
            self.owned.append((desk, claimed))

    async def advance(self) -> None:
        """Finish or park, sometimes as an owner that is none any more."""
        if not self.owned:
            return
        place = self.chance.randrange(len(self.owned))
        desk, claimed = self.owned[place]
        if self.chance.random() < 0.8:
            del self.owned[place]
        if claimed.settle is not None:
            await desk.settle(claimed)
            return
        waits = any(row.state == "OPEN" for row in claimed.unapplied)
        if not waits and self.chance.random() < 0.5:
            assert await desk.finish(claimed) in (Verdict.COMMITTED, Verdict.READY, Verdict.FENCED)
            return
        mode = self.chance.choice(("ALL", "ANY"))
        verdict, executions = await desk.try_park(
            claimed, self.chance.randint(1, 3), wait_mode=mode
        )
        if verdict in (Verdict.COMMITTED, Verdict.READY):
            self.executions |= dict.fromkeys(executions, 0)
        elif verdict is Verdict.CANCEL_FIRST:
            await desk.settle(claimed)

    async def deliver(self) -> None:
        """Any update of any call, also late, early and twice."""
        if not self.executions:
            return
        execution = self.chance.choice(list(self.executions))
        sequence = self.executions[execution] + self.chance.choice((-1, 0, 1, 1, 1, 2))
        state = self.chance.choice((S.ADMITTED, S.STARTED, S.SUCCEEDED, S.FAILED, S.UNKNOWN))
        raw = self.hands.update(execution, state, sequence=max(1, sequence))
        desk = self.desk
        delivered = await desk.deliver(raw, claiming=self.chance.choice((None, ID)))
        if delivered.accepted == "APPLIED":
            self.executions[execution] = max(1, sequence)
        if delivered.claimed is not None:
            self.owned.append((desk, delivered.claimed))

    async def cancel(self) -> None:
        if not self.turns:
            return
        turn = self.chance.choice(self.turns)
        try:
            await self.desk.cancel(KEY.id, turn, f"c{turn}")
        except NerveError as error:
            assert error.code == "wrong_state"

    async def release(self) -> None:
        """One host dies; another process takes its place."""
        if self.chance.random() < 0.7:
            return
        victim, heir = self.desks if self.chance.random() < 0.5 else reversed(self.desks)
        unit = Release(host=victim.host.id, now=heir.now(), also=release_threads)
        assert await heir.ledger.commit(release, unit)
        await victim.hosts.close()
        await victim.open(ID)

    async def give_back(self) -> None:
        if not self.owned:
            return
        desk, claimed = self.owned.pop(self.chance.randrange(len(self.owned)))
        unit = GiveBack(
            thread=claimed.thread,
            host=desk.host.id,
            token=claimed.token,
            reason="a walk",
            ready_at=desk.now(),
            now=desk.now(),
        )
        await desk.ledger.commit(give_back, unit)


async def check(walk: Walk) -> None:
    """What holds between any two transactions."""
    runtime = walk.session.runtime
    threads = await rows(runtime, THREADS)
    turns = await rows(runtime, TURNS)
    intents = await rows(runtime, INTENTS)
    live = {desk.host.id for desk in walk.desks}
    for thread in threads:
        mine = [turn for turn in turns if turn["thread"] == thread["id"]]
        check_queue(thread, mine, live)
    for turn in turns:
        calls = [intent for intent in intents if intent["turn"] == turn["id"]]
        assert turn["open_count"] == sum(intent["state"] == "OPEN" for intent in calls)
    assert await runtime.ledger.read(stuck) == []
    check_events(await rows(runtime, EVENTS), turns)
    check_chain(await rows(runtime, JOURNAL), threads)


def check_queue(thread: Row, turns: list[Row], live: set[str]) -> None:
    unfinished = [turn["id"] for turn in turns if turn["ended_at"] is None]
    assert [turn["ordinal"] for turn in turns] == list(range(1, len(turns) + 1))
    assert thread["head"] == (unfinished[0] if unfinished else None)
    assert (thread["phase"] == "IDLE") == (not unfinished)
    assert thread["host"] is None or thread["host"] in live
    for turn in turns:
        if turn["id"] != thread["head"] and turn["ended_at"] is None:
            assert turn["phase"] == "QUEUED"


def check_events(events: list[Row], turns: list[Row]) -> None:
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    told = [(event["turn"], ENDS[event["type"]]) for event in events if event["type"] in ENDS]
    ended = [(turn["id"], turn["phase"]) for turn in turns if turn["ended_at"] is not None]
    assert sorted(told) == sorted(ended)


def check_chain(journal: list[Row], threads: list[Row]) -> None:
    for thread in threads:
        digest, position = GENESIS, 0
        for row in journal:
            if row["thread"] == thread["id"]:
                position += 1
                digest = chained(digest, row["entries"], row["state"])
                assert (row["position"], row["digest"]) == (position, digest)
        assert (thread["position"], thread["digest"]) == (position, digest)


@pytest.mark.law(3)
@pytest.mark.law(8)
@pytest.mark.rule(22)
@pytest.mark.parametrize("seed", range(12))
async def test_every_walk_keeps_what_must_hold(desks: Desks, session: Session, seed: int) -> None:
    await session.open_thread("side")
    walk = Walk(desks, session, random.Random(seed))
    for number in range(150):
        await walk.step()
        if number % 5 == 0:
            await check(walk)
    await check(walk)
    assert len(walk.turns) > 10
