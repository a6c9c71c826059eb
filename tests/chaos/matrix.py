"""The kill matrix: every fault point, in every role that reaches it, in every arrangement of processes.

A round starts the victim with one point armed, submits work, sees the victim die at that point, and goes on
to the next round, whose victim takes over what was left. At the end nothing is armed and all must end.
"""

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Self
from unittest.mock import patch

from chaos.points import (
    AT_THE_END,
    FOUR,
    MEMORY,
    ONE,
    SERVERS,
    TWO,
    Case,
    also_armed,
    kinds_for,
    matches,
)
from nerve.common.settings import load
from nerve.protocol import topics
from support import cluster_place
from support.cluster import FAST, PRODUCTION, Cluster, Forge, Node
from support.cluster_place import Servers
from support.cluster_world import MIX
from support.probe import Audit, Probe

ARRANGEMENTS: Mapping[str, Mapping[str, int]] = {
    ONE: {"both": 1},
    TWO: {"brain": 1, "hands": 1},
    FOUR: {"brain": 2, "hands": 2},
    MEMORY: {"both": 1},
    SERVERS: {"brain": 1, "hands": 1},
}
MODES: Mapping[str, Mapping[str, str]] = {
    "normal": FAST,
    "hints off": {**PRODUCTION, "NERVE_HINTS": "off"},
    "replay always": {**FAST, "CHAOS_WARM_FRAMES": "0"},
}
"""Every hint dropped, at the production intervals; and every Run rebuilt after each commit."""

CLIENT_KINDS = ("plain", "cancelled", "talk")
ROUND_SECONDS = 6.0
SETTLE_SECONDS = 40.0
ALL_AT_ONCE = 0.1
"""How often a random kill takes every process."""

EXPIRY_SECONDS = "0.05"


@dataclass(slots=True, kw_only=True)
class Result:
    """What a campaign did and what became of it."""

    arrangement: str
    name: str = ""
    kills: list[str] = field(default_factory=list[str])
    missed: list[str] = field(default_factory=list[str])
    audits: list[Audit] = field(default_factory=list[Audit])
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return [each for audit in self.audits for each in audit.violations]


class Campaign:
    """Kills in one cluster, one after the other."""

    def __init__(self, cluster: Cluster, probe: Probe, arrangement: str, seed: int) -> None:
        self.cluster = cluster
        self.probe = probe
        self.result = Result(arrangement=arrangement)
        self._roles = ARRANGEMENTS[arrangement]
        self._hands = "hands" if "hands" in self._roles else "both"
        self._chance = random.Random(seed)
        self._clients = 0
        self._began = time.monotonic()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        forge: Forge,
        place: Path,
        arrangement: str,
        *,
        seed: int = 0,
        environment: Mapping[str, str] | None = None,
        servers: Servers | None = None,
    ) -> AsyncGenerator[Self]:
        given = dict(FAST if environment is None else environment)
        shared = ["NERVE_HINTS"]
        if servers is not None:
            given |= servers.environment()
            shared += servers.environment()
        if arrangement == MEMORY:
            given["CHAOS_BROKER"] = "memory"
        cluster = Cluster(forge, place, given)
        ours = {name: value for name, value in given.items() if name in shared}
        try:
            with patch.dict(os.environ, ours):
                async with Probe.open(cluster.state, place, load()) as probe:
                    campaign = cls(cluster, probe, arrangement, seed)
                    await campaign.fill()
                    yield campaign
        finally:
            await cluster.close()

    async def fill(self, *, victim: str = "") -> None:
        """Start, unarmed, whatever does not run; of the victim's role one process less."""
        for role, count in self._roles.items():
            wanted = count - (role == victim)
            missing = wanted - len(self.cluster.of(role))
            for node in [self.cluster.start(role) for _ in range(missing)]:
                await node.ready()

    async def kill_at(self, case: Case) -> bool:
        """One round; whether the victim died at its point."""
        runs = {"client": self._client, "operator": self._operator}
        victim = await runs.get(case.role, self._host)(case)
        if victim.running:
            await victim.kill()
        died = any(hit.name == case.point for hit in victim.hits())
        (self.result.kills if died else self.result.missed).append(str(case))
        return died

    async def kill_at_random(self) -> None:
        """One round: a random process of a random role at a random time."""
        await self.fill()
        role = self._chance.choice(sorted(self._roles))
        victim = self._chance.choice(self.cluster.of(role))
        await self.submit(self._chance.sample(MIX, 3), f"random kill {len(self.result.kills)}")
        await asyncio.sleep(self._chance.choice((0.002, 0.01, 0.03, 0.1)) * self._chance.random())
        everybody = [node for node in self.cluster.nodes if node.running]
        for node in everybody if self._chance.random() < ALL_AT_ONCE else [victim]:
            await node.kill()
            self.result.kills.append(f"{node.role} at random")

    async def finish(self, seconds: float = SETTLE_SECONDS) -> Audit:
        """All hosts up and unarmed: everything must end."""
        await self.fill()
        self._keep_acknowledgements()
        left = await self.probe.settle(seconds)
        audit = await self.probe.audit(left)
        self.result.audits.append(audit)
        self.result.seconds = time.monotonic() - self._began
        return audit

    async def submit(self, kinds: Sequence[str], note: str) -> list[str]:
        """Turns of these kinds, some of them behind one another in one Thread."""
        queue = f"q{len(self.probe.acknowledged)}" if self._chance.random() < 0.3 else None
        turns: list[str] = []
        for kind in kinds:
            shared = queue if kind != "steps" else None
            turns.append((await self.probe.submit(kind, note, session=shared)).id)
        return turns

    async def _host(self, case: Case) -> Node:
        running = self.cluster.of(case.role)
        if len(running) == self._roles[case.role]:
            await self._chance.choice(running).kill()
        await self.fill(victim=case.role)
        environment: dict[str, str] = {}
        if fnmatch(case.point, "hands.start.*"):
            environment["NERVE_HANDS_SLOTS"] = "2"
        if fnmatch(case.point, "brain.not_found.*"):
            environment["NERVE_ADMIT_WITHIN_SECONDS"] = EXPIRY_SECONDS
        if fnmatch(case.point, "brain.give_back.*"):
            environment["NERVE_DRAIN_SECONDS"] = "0.01"
        armed = ";".join([f"{case.point}=kill@{case.hit}", *also_armed(case.point)])
        victim = self.cluster.start(case.role, faults=armed, **environment)
        if await victim.up():
            await self._alone(case, victim)
        if victim.running:
            victim.signal(signal.SIGTERM)
            await self._died(victim, ROUND_SECONDS)
        return victim

    async def _alone(self, case: Case, victim: Node) -> None:
        """Provoke the victim while the others of its role stand still; afterwards they take over."""
        standby = [node for node in self.cluster.of(case.role) if node is not victim]
        try:
            for node in standby:
                await self.cluster.freeze_outside(node)
            await self._provoke(case, victim)
            await self._died(victim, ROUND_SECONDS)
        finally:
            for node in standby:
                node.thaw()

    async def _provoke(self, case: Case, victim: Node) -> None:
        note = str(case)
        if fnmatch(case.point, "brain.not_found.*"):
            await self._let_expire(victim, note)
        elif fnmatch(case.point, "common.inbox.refuse.*"):
            await self.send_garbage()
        elif fnmatch(case.point, "brain.give_back.*"):
            turns = await self.submit(["thinking"], note)
            await seen(lambda: self.asked(turns[0]), "the model was asked")
        elif fnmatch(case.point, "hands.cancel.*"):
            turns = await self.submit(["cancelled later"], note)

            async def entered() -> bool:
                return await self.entered(turns[0]) or not victim.running

            await seen(entered, "the slow tool was entered")
            await (await self.probe.runtime.get_turn(turns[0])).cancel(f"{turns[0]}-cancel")
        else:
            await self.submit([*kinds_for(case.point), *self._chance.sample(MIX, 3)], note)
        if matches(case.point, AT_THE_END):
            victim.signal(signal.SIGTERM)
        if fnmatch(case.point, "common.broker.sqlite.*_release_commit"):
            # The claims of a dead consumer are what there is to give back.
            for node in self.cluster.of("hands" if case.role == "brain" else "brain"):
                await node.kill()

    async def _client(self, case: Case) -> Node:
        await self.fill()
        self._clients += 1
        acks = self.cluster.place / "acks" / f"c{self._clients}.txt"
        acks.parent.mkdir(exist_ok=True)
        armed = f"{case.point}=kill@{case.hit}"
        client = self.cluster.client(acks, CLIENT_KINDS, faults=armed)
        await self._died(client, ROUND_SECONDS)
        # Whoever repeats what may or may not have been admitted gets the same Turns.
        await self.cluster.client(acks, CLIENT_KINDS).ended()
        return client

    async def _operator(self, case: Case) -> Node:
        await self.fill()
        turns = await self.submit(["slow"], str(case))
        await seen(lambda: self.entered(turns[0]), "the slow tool was entered")
        for node in self.cluster.of(self._hands):
            await node.kill()
        await self.fill()
        await seen(self.probe.any_unknown, "its outcome is UNKNOWN")
        operator = self.cluster.operator(faults=f"{case.point}=kill@{case.hit}")
        await self._died(operator, ROUND_SECONDS)
        return operator

    async def _let_expire(self, victim: Node, note: str) -> None:
        """A command that Hands see only after its time: they refuse it, and Brain renews it."""
        frozen = self.cluster.of("hands")
        for node in frozen:
            await self.cluster.freeze_outside(node)
        try:
            (turn,) = await self.submit(["plain"], note)

            async def old() -> bool:
                published_at = self._published_at(turn)
                age_ms = self.probe.runtime.now() - published_at
                late = published_at > 0 and age_ms > float(EXPIRY_SECONDS) * 1000
                return late or not victim.running

            await seen(old, "the command is too old")
        finally:
            for node in frozen:
                node.thaw()

    def _published_at(self, turn: str) -> int:
        """When the first command of a Turn came into its queue (ms); 0 where it did not."""
        file = sqlite3.connect(f"file:{self.cluster.state / 'broker.db'}?mode=ro", uri=True)
        with closing(file):
            found = file.execute(
                "select coalesce(min(published_at), 0) from message"
                " where topic = ? and instr(body, ?)",
                (topics.commands("local", "hands"), turn.encode()),
            ).fetchone()
        return int(found[0])

    async def send_garbage(self) -> None:
        """What cannot be read, on every topic of the directory."""
        broker = cluster_place.broker(self.cluster.state, self.probe.backend.wakeups, load())
        await broker.open()
        try:
            cell = self.probe.backend.ledger.identity.id
            for topic in (
                topics.commands("local", "hands"),
                topics.controls("local", "hands"),
                topics.updates("local", cell),
            ):
                await broker.publish(topic, [b"\xff{garbage"])
        finally:
            await broker.close()

    def _keep_acknowledgements(self) -> None:
        for acks in (self.cluster.place / "acks").glob("*.txt"):
            self.probe.keep_file(acks, "cancelled", f"client {acks.stem}")

    async def entered(self, turn: str) -> bool:
        return f" {turn}." in _text(self.probe.world.effects)

    async def asked(self, turn: str) -> bool:
        return f" {turn}/" in _text(self.probe.world.asked)

    async def _died(self, node: Node, seconds: float) -> None:
        with suppress(AssertionError):
            await node.ended(seconds)


async def seen(fact: Callable[[], Awaitable[bool]], what: str, seconds: float = 20.0) -> None:
    """Return once `fact()` holds; fail with `what` did not happen."""
    deadline = time.monotonic() + seconds
    while not await fact():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds:g} s: {what}")
        await asyncio.sleep(0.005)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
