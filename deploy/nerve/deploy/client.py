"""The command line as a client: a state directory without running anything, and the things in it by name."""

import difflib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nerve.brain.handles import Turn
from nerve.brain.ledger import queries
from nerve.brain.ledger.backend import LocalBackend, SessionBackend
from nerve.brain.ledger.definitions import AGENTS
from nerve.brain.runtime import DurableRuntime
from nerve.common.place import MARKER, StateDirectory
from nerve.common.settings import Settings
from nerve.common.sql import Row, Tx
from nerve.deploy.databases import address_of, brain_backend
from nerve.deploy.hints import hinted
from nerve.protocol.errors import BadInput, NotFound, UnknownTurn

BRAIN = "brain"
DEFAULT_DIRECTORY = ".nerve"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """An API-only host: it admits work and reads, and runs no agent."""

    where: str
    directory: StateDirectory | None
    """None where the ledger is in a database: what is beside it is not known here."""
    backend: SessionBackend
    runtime: DurableRuntime

    async def turn(self, prefix: str) -> Turn:
        """The Turn with this id or unique beginning of it. Raises UnknownTurn, BadInput."""
        return await self.runtime.get_turn(await self._turn_id(prefix))

    async def _turn_id(self, prefix: str) -> str:
        if not prefix.isalnum() or len(prefix) > 27:
            raise BadInput(
                f"{ascii(prefix)[:80]} is not a Turn id",
                where="TURN",
                next_step="Give an id or its beginning, as `nerve ls` prints them",
            )

        async def query(tx: Tx) -> list[str]:
            return [row["id"] for row in await tx.all(queries.NEAR, low=prefix, high=f"{prefix}~")]

        found = await self.backend.ledger.read(query)
        if len(found) == 1 or prefix in found:
            return found[0] if len(found) == 1 else prefix
        if found:
            raise BadInput(
                f"several Turns begin with {prefix}: {', '.join(found[:3])}",
                where="TURN",
                next_step="Give more of the id",
            )
        raise await self._unknown_turn(prefix)

    async def _unknown_turn(self, prefix: str) -> UnknownTurn:
        turns = [item.turn for item in await self.runtime.list_turns(limit=500)]
        near = difflib.get_close_matches(prefix, turns, n=1, cutoff=0.8)
        step = f"Did you mean {near[0]}?" if near else "`nerve ls` lists those there are"
        return UnknownTurn(
            f"there is no Turn {prefix} in {self.where}", where="TURN", next_step=step
        )

    async def agents(self) -> list[str]:
        """Names of the agents that a host of this directory has ever offered."""

        async def query(tx: Tx) -> list[Row]:
            return list(await tx.all(AGENTS))

        return [row["agent"] for row in await self.backend.ledger.read(query)]


@asynccontextmanager
async def client(directory: Path, settings: Settings) -> AsyncGenerator[Client]:
    """Open what stands in `directory`.

    Raises:
        NotFound: there is no state; names the nearest directory that has one.
        WrongLedger, Damaged, SchemaTooNew, LedgerUnavailable.
    """
    if settings.database:
        async with (
            AsyncExitStack() as stack,
            await brain_backend(settings, None, create=False) as own,
            DurableRuntime(
                remote := await hinted(stack, own, settings, own.clock), settings=settings
            ) as runtime,
        ):
            where = str(address_of(settings))
            yield Client(where=where, directory=None, backend=remote, runtime=runtime)
        return
    place = existing(directory)
    if BRAIN not in place.ledgers:
        raise _no_brain(place)
    async with (
        LocalBackend.open(directory, create=False) as backend,
        DurableRuntime(backend, settings=settings) as runtime,
    ):
        yield Client(where=str(place.path), directory=place, backend=backend, runtime=runtime)


def existing(directory: Path) -> StateDirectory:
    """The state directory at this place. Raises NotFound and what opening raises."""
    if not (directory / MARKER).exists() and not directory.is_file():
        raise _no_state(directory)
    return StateDirectory.open(directory, create=False)


def place_option(directory: Path) -> str:
    """What a command in this working directory needs to find the state, with a blank before it."""
    here = Path(DEFAULT_DIRECTORY).absolute()
    return "" if directory.absolute() == here else f" --dir {directory}"


def has_brain(directory: Path) -> bool:
    """Whether a Brain was ever started there."""
    return (directory / MARKER).exists() and BRAIN in existing(directory).ledgers


def nearest_state(directory: Path) -> Path | None:
    """A state directory close to one that is none: inside it, above it, beside it or spelt alike."""
    folder = directory.absolute()
    for candidate in (folder / DEFAULT_DIRECTORY, *(p / DEFAULT_DIRECTORY for p in folder.parents)):
        if candidate != folder and (candidate / MARKER).exists():
            return candidate
    if not folder.parent.is_dir():
        return None
    beside = [each.parent for each in folder.parent.glob(f"*/{MARKER}")]
    beside += [each.parent for each in folder.parent.glob(f"*/{DEFAULT_DIRECTORY}/{MARKER}")]
    names = {each.name: each for each in beside}
    near = difflib.get_close_matches(folder.name, names, n=1, cutoff=0.5)
    if near:
        return names[near[0]]
    return beside[0] if len(beside) == 1 else None


def _no_state(directory: Path) -> NotFound:
    near = nearest_state(directory)
    return NotFound(
        f"there is no nerve state in {directory}",
        where="--dir",
        next_step=f"Did you mean --dir {near}?"
        if near
        else f"`nerve dev app.py{place_option(directory)}` starts a host there, or name the right"
        " directory with --dir",
    )


def _no_brain(place: StateDirectory) -> NotFound:
    return NotFound(
        f"no Brain has ever run on {place.path}",
        where="--dir",
        next_step=f"`nerve brain app.py{place_option(place.path)}` starts one",
    )
