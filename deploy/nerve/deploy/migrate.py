"""`nerve migrate`: the schema of a ledger in a directory or a database, shown or brought up to date."""

from dataclasses import dataclass
from pathlib import Path

from nerve.brain.ledger.schema import SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.settings import Settings
from nerve.common.sql.migrate import Meta, Schema, look, prepare
from nerve.deploy.client import existing
from nerve.deploy.databases import address_of
from nerve.deploy.output import Console
from nerve.hands.ledger.schema import HANDS_SCHEMA
from nerve.protocol.errors import BadInput

DONE = 0
BEHIND = 3
ROOMS = {"brain": SCHEMA, "hands": HANDS_SCHEMA}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One ledger: the version of its tables, and the one that this build writes."""

    ledger: str
    room: str
    version: int | None
    build: int
    id: str | None = None

    @property
    def current(self) -> bool:
        return self.version is not None and self.version >= self.build


async def status(directory: Path, room: str | None, console: Console, settings: Settings) -> int:
    """Print where each ledger stands; 3 where one is behind this build."""
    found = await _standings(directory, room, settings)
    console.answer(found, "\n".join(map(_line, found)) or "There is no ledger yet.")
    return DONE if all(each.current for each in found) else BEHIND


async def up(directory: Path, room: str | None, console: Console, settings: Settings) -> int:
    """Make or upgrade; nothing where it is current. Hosts may run meanwhile: one lock serves all."""
    now = SystemClock().now_ms()
    if settings.database:
        await _up_database(await _room_of(room, settings), settings, now)
    else:
        place = existing(directory)
        for name in place.ledgers:
            prepare(place.ledger(name), schema_of(name), create=False, now=now)
    return await status(directory, room, console, settings)


async def _up_database(schema: Schema, settings: Settings, now: int) -> None:
    from nerve.common.sql import postgres_schema
    from nerve.common.sql.postgres import reached
    from nerve.common.sql.postgres_source import UrlSource

    async with reached():
        await postgres_schema.prepare(UrlSource(address_of(settings)), schema, create=True, now=now)


async def _standings(directory: Path, room: str | None, settings: Settings) -> list[Standing]:
    if settings.database:
        meta = await meta_of(settings)
        named = meta.room if meta is not None else (room or "brain or hands")
        return [_standing(str(address_of(settings)), named, meta)]
    place = existing(directory)
    return [
        _standing(str(place.ledger(name)), schema_of(name).room, look(place.ledger(name)))
        for name in place.ledgers
    ]


async def meta_of(settings: Settings) -> Meta | None:
    """What the ledger in the database says of itself."""
    address = address_of(settings)
    from nerve.common.sql import postgres_schema
    from nerve.common.sql.postgres import reached
    from nerve.common.sql.postgres_source import UrlSource

    async with reached():
        return await postgres_schema.look(UrlSource(address))


async def _room_of(room: str | None, settings: Settings) -> Schema:
    if room is not None and room not in ROOMS:
        raise BadInput(
            f"{ascii(room)} is no room",
            where="--room",
            next_step="Say --room brain or --room hands",
        )
    meta = await meta_of(settings)
    if meta is not None and room is None:
        room = meta.room
    if room is None:
        raise BadInput(
            "the database holds no ledger yet",
            where="--room",
            next_step="Say --room brain or --room hands",
        )
    return ROOMS[room]


def schema_of(name: str) -> Schema:
    """Of a ledger of a state directory, by its name."""
    return SCHEMA if name == "brain" else HANDS_SCHEMA


def _standing(ledger: str, room: str, meta: Meta | None) -> Standing:
    schema = ROOMS.get(room, SCHEMA)
    return Standing(
        ledger=ledger,
        room=room,
        version=None if meta is None else meta.version,
        build=schema.version,
        id=None if meta is None else meta.id,
    )


def _line(each: Standing) -> str:
    if each.version is None:
        return f"{each.ledger}: no ledger yet; `nerve migrate up --room {each.room}` makes it"
    if each.current:
        return f"{each.ledger}: {each.room} ledger, schema {each.version}, current"
    return (
        f"{each.ledger}: {each.room} ledger, schema {each.version}, this build writes {each.build};"
        " `nerve migrate up` upgrades it"
    )
