"""Power loss: ledger files are cut back to what had been flushed, at random moments, and opened again.

A shim records every write and flush of every process in one order. At a moment, a file holds what was written
before its last finished flush began, and of later writes none, or any of them. Whatever was acknowledged before
that moment must stand in the ledger, and every tool that was entered must stand there as started.
"""

import random
import shutil
import sqlite3
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from nerve.brain.ledger.schema import SCHEMA as BRAIN_SCHEMA
from nerve.common.clock import SystemClock
from nerve.common.sql import Schema, open_sqlite
from nerve.hands.ledger.schema import HANDS_SCHEMA
from nerve.protocol.errors import NerveError
from support.cluster import FAST, Cluster, Forge

SOURCE = Path(__file__).with_name("power_shim.c")
HEAD = struct.Struct("<IHBBQQ")
KINDS = ("plain", "many", "threaded", "written", "talk", "cancelled")
CLIENTS = 3


@final
@dataclass(frozen=True, slots=True)
class Event:
    """One record of the shim."""

    kind: str
    thread: int
    path: Path
    offset: int
    data: bytes


@dataclass(slots=True)
class _File:
    """What is durable of one file, and the writes that are not: (number, event)."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])

    def flushed(self, began: int) -> None:
        later = [each for each in self.pending if each[0] >= began]
        for number, event in self.pending:
            if number < began:
                _apply(self.durable, event)
        self.pending = later

    def after_a_cut(self, chance: random.Random, survive: float) -> bytes:
        image = bytearray(self.durable)
        for _, event in self.pending:
            if chance.random() < survive:
                _apply(image, event)
        return bytes(image)


@dataclass(slots=True, kw_only=True)
class Power:
    """What was looked up after the cuts, and what was missing."""

    cuts: int = 0
    acknowledged: int = 0
    entered: int = 0
    lost: list[str] = field(default_factory=list[str])


def compile_shim(folder: Path) -> Path | None:
    """The shared object; None where the machine has no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    target = folder / "power_shim.so"
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"], check=True
    )
    return target


async def cut_everywhere(place: Path, *, cuts: int, seed: int) -> Power:
    """Run real hosts and clients under the shim, then cut at `cuts` moments of their record."""
    log = await recorded(place)
    return Power() if log is None else await cut_at(place, read(log), cuts=cuts, seed=seed)


async def cut_at(place: Path, record: Iterable[Event], *, cuts: int, seed: int) -> Power:
    """Cut at `cuts` moments of a record."""
    power = Power()
    events = list(record)
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(len(events)), min(cuts, len(events))))
    for number, (files, acknowledged, entered) in enumerate(_walk(events, moments)):
        cut = place / "cut" / str(number)
        cut.mkdir(parents=True)
        survive = chance.choice((0.0, 0.0, 0.5, 0.9))
        for path, file in files.items():
            (cut / path.name).write_bytes(file.after_a_cut(chance, survive))
        await _look(power, cut, acknowledged, entered)
        shutil.rmtree(cut)
    return power


async def recorded(place: Path) -> Path | None:
    shim = compile_shim(place)
    if shim is None:
        return None
    log = place / "power.log"
    made = Forge(
        {
            "LD_PRELOAD": str(shim),
            "POWER_SHIM_LOG": str(log),
            "POWER_SHIM_FOLDER": str(place),
        }
    )
    cluster = Cluster(made, place, FAST)
    try:
        nodes = [cluster.start("brain"), cluster.start("hands")]
        for node in nodes:
            await node.ready()
        for number in range(CLIENTS):
            await cluster.client(place / f"acks{number}.txt", KINDS).ended()
        for node in nodes:
            await node.kill()
    finally:
        await cluster.close()
        made.close()
    return log


def read(log: Path) -> Iterator[Event]:
    raw = log.read_bytes()
    at = 0
    while at + HEAD.size <= len(raw):
        thread, path_size, kind, _, offset, size = HEAD.unpack_from(raw, at)
        at += HEAD.size
        path = raw[at : at + path_size].decode()
        at += path_size
        data = raw[at : at + size]
        at += size
        yield Event(chr(kind), thread, Path(path), offset, data)


def _walk(
    events: Sequence[Event], moments: Sequence[int]
) -> Iterator[tuple[dict[Path, _File], list[str], list[str]]]:
    files: dict[Path, _File] = defaultdict(_File)
    begun: dict[tuple[int, Path], int] = {}
    acknowledged: list[str] = []
    entered: list[str] = []
    wanted = iter(moments)
    moment = next(wanted, None)
    for number, event in enumerate(events):
        match event.kind:
            case "W" | "T":
                files[event.path].pending.append((number, event))
            case "B":
                begun[event.thread, event.path] = number
            case "F":
                files[event.path].flushed(begun[event.thread, event.path])
            case _:
                _said(event, acknowledged, entered)
        if number == moment:
            yield files, acknowledged, entered
            moment = next(wanted, None)


def _said(event: Event, acknowledged: list[str], entered: list[str]) -> None:
    words = event.data.decode(errors="replace").split()
    if event.path.name.startswith("acks"):
        acknowledged.append(words[1])
    elif event.path.name == "effects.txt" and words[0] == "entered":
        entered.append(words[1])


async def _look(
    power: Power, cut: Path, acknowledged: Sequence[str], entered: Sequence[str]
) -> None:
    power.cuts += 1
    power.acknowledged += len(acknowledged)
    power.entered += len(entered)
    started = {each for each in entered if "~" not in each}  # Those with it ran inside the Brain.
    question = "select id from execution where attempt > 0"
    for file, schema, ask, promised in (
        (cut / "brain.db", BRAIN_SCHEMA, "select id from turn", set(acknowledged)),
        (cut / "hands-hands.db", HANDS_SCHEMA, question, started),
    ):
        if not promised:
            continue
        try:
            there = await _ids(file, schema, ask)
        except (NerveError, sqlite3.Error, OSError) as error:
            power.lost.append(f"the whole {file.name} at cut {power.cuts}: {error}")
            continue
        power.lost += [f"{each} of {file.name} at cut {power.cuts}" for each in promised - there]


async def _ids(file: Path, schema: Schema, question: str) -> set[str]:
    """Open the ledger as a host does, and ask."""
    ledger = await open_sqlite(file, schema, clock=SystemClock(), create=False)
    await ledger.close()
    with closing(sqlite3.connect(file)) as connection:
        (verdict,) = connection.execute("pragma integrity_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        return {row[0] for row in connection.execute(question)}


def _apply(image: bytearray, event: Event) -> None:
    if event.kind == "T":
        del image[event.offset :]
        image.extend(b"\0" * (event.offset - len(image)))
        return
    end = event.offset + len(event.data)
    if len(image) < end:
        image.extend(b"\0" * (end - len(image)))
    image[event.offset : end] = event.data
