"""Agent definitions as hosts offered them: what a Thread pins, and what an API-only host may open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from nerve.brain.harness import Definition
from nerve.common.sql import Tx, law, sql
from nerve.protocol.canonical import canonical_bytes, digest
from nerve.protocol.errors import UnknownAgent

FIND = sql("select * from definition where id = :id")
# A definition that is not there yet has no row to lock.
LOCK = sql(
    "select 1 from definition where id = :id",
    server="select pg_advisory_xact_lock(hashtextextended(:id, 0))",
)
NEWEST = sql(
    "select id from definition where agent = :agent order by registered_at desc, version desc limit 1"
)
OF_VERSION = sql("select id from definition where agent = :agent and version = :version limit 1")
AGENTS = sql("select agent from definition group by agent order by agent")
PUT = sql(
    "insert into definition"
    " (id, agent, version, harness, state_version, digest, bindings, registered_at)"
    " values (:id, :agent, :version, :harness, :state_version, :digest, :bindings, :now)"
    " on conflict (id) do update set digest = excluded.digest, bindings = excluded.bindings,"
    " registered_at = excluded.registered_at"
)
HOLDERS = sql(
    "select t.id from turn t join thread h on h.id = t.thread where h.definition = :id"
    " and t.ended_at is null order by t.id limit :limit"
)


def definition_id(definition: Definition) -> str:
    """The text that a Thread pins and that claims match exactly."""
    return (
        f"{definition.agent}/{definition.version}/{definition.harness}/{definition.state_version}"
    )


def parse_definition(id: str) -> Definition:
    agent, version, harness, state_version = id.split("/")
    return Definition(agent=agent, version=version, harness=harness, state_version=state_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A definition as one host has it; `bindings` maps its tools' names, and the agent's own mark,
    to their frozen form."""

    definition: Definition
    bindings: Mapping[str, Any]
    now: int
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The same name and version in another form: nothing was written."""

    id: str
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    turns: Sequence[str]


@law("brain.offer", keys=lambda unit: (definition_id(unit.definition),))
async def offer(tx: Tx, unit: Offer) -> Changed | None:
    """Register a definition; refused where unfinished Turns hold it with other bindings."""
    id = definition_id(unit.definition)
    await tx.lock(LOCK, id=id)
    mark = digest(canonical_bytes(unit.bindings))
    row = await tx.one(FIND, id=id)
    if row is not None and row["digest"] == mark:
        return None
    if row is not None and not unit.fresh:
        turns = [each["id"] for each in await tx.all(HOLDERS, id=id, limit=20)]
        if turns:
            return Changed(id=id, old=orjson.loads(row["bindings"]), new=unit.bindings, turns=turns)
    await tx.run(
        PUT,
        id=id,
        agent=unit.definition.agent,
        version=unit.definition.version,
        harness=unit.definition.harness,
        state_version=unit.definition.state_version,
        digest=mark,
        bindings=canonical_bytes(unit.bindings).decode(),
        now=unit.now,
    )
    return None


async def resolve(tx: Tx, agent: str, version: str | None) -> str:
    """The pinned text for a new Thread of `agent`; the newest version where none is named.

    Raises:
        UnknownAgent: no host has ever offered it; the error names those that were.
    """
    row = await (
        tx.one(NEWEST, agent=agent)
        if version is None
        else tx.one(OF_VERSION, agent=agent, version=version)
    )
    if row is not None:
        return str(row["id"])
    known = [each["agent"] for each in await tx.all(AGENTS)]
    named = agent if version is None else f"{agent} version {version}"
    raise UnknownAgent(
        f"no host has offered the agent {named}",
        where="agent",
        next_step=f"known here: {', '.join(known)}"
        if known
        else "start a host that has it: `nerve brain app.py`",
        details={"known": known},
    )
