"""Where the processes of a cluster keep their ledgers, and where they meet: in one directory, or on servers.

Servers are named in the environment, which every process of a cluster inherits from its test.
"""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nerve.brain.ledger.backend import LocalBackend, SessionBackend
from nerve.brain.ledger.postgres_backend import PostgresBackend
from nerve.common.broker.port import Broker
from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.clock import SystemClock
from nerve.common.objects.files import FileObjects
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.wakeups import Wakeups
from nerve.deploy.addresses import broker_at
from nerve.hands.ledger.backend import PostgresStorage
from nerve.hands.operations import ExecutionStore

BRAIN, HANDS, BROKER = "CHAOS_DATABASE_BRAIN", "CHAOS_DATABASE_HANDS", "NERVE_BROKER"
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Two databases and a broker."""

    brain: str
    hands: str
    broker: str

    def environment(self) -> Mapping[str, str]:
        return {BRAIN: self.brain, HANDS: self.hands, BROKER: self.broker}


@asynccontextmanager
async def brain_backend(state: Path) -> AsyncGenerator[SessionBackend]:
    url = os.environ.get(BRAIN)
    if not url:
        async with LocalBackend.open(state) as local:
            yield local
        return
    place = StateDirectory.open(state, create=True)
    objects = FileObjects(place.objects)
    opened = await PostgresBackend.open(url, objects=objects, patience_seconds=PATIENCE_SECONDS)
    async with opened as backend:
        yield backend


def hands_place(state: Path) -> StateDirectory | PostgresStorage:
    url = os.environ.get(HANDS)
    if url:
        return PostgresStorage(url, patience_seconds=PATIENCE_SECONDS)
    return StateDirectory.open(state, create=True)


async def execution_store(state: Path) -> ExecutionStore:
    place = hands_place(state)
    if isinstance(place, PostgresStorage):
        return await ExecutionStore.over(place)
    return await ExecutionStore.open(state)


def served() -> bool:
    """Whether the ledgers are on a server."""
    return bool(os.environ.get(HANDS))


def broker(state: Path, bell: Wakeups, settings: Settings) -> Broker:
    if settings.broker:
        return broker_at(settings.broker, settings, SystemClock())
    return SqliteBroker(
        state,
        bell,
        publish_seconds=settings.publish_seconds,
        poll_seconds=settings.broker_poll_seconds,
        ack_seconds=settings.ack_seconds,
        sweep_seconds=settings.sweep_seconds,
    )
