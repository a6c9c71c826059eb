"""Which topics of the broker a host uses, and its refusal to start where one of them does not stand."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from nerve.brain.harness import Harness
from nerve.common.broker.port import Broker
from nerve.common.broker.served import Lack, Served
from nerve.common.logs import get_log
from nerve.protocol import topics
from nerve.protocol.errors import BrokerUnavailable, NotFound

START_SECONDS = 5.0
"""A broker that does not answer keeps no host from starting: it is waited for by what needs it."""

_log = get_log("nerve.deploy.needs")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Topics that a host publishes to, and those that it consumes."""

    writes: Sequence[str] = ()
    reads: Sequence[str] = ()

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys([*self.reads, *self.writes]))

    def __add__(self, other: "Needs") -> "Needs":
        return Needs(
            writes=tuple(dict.fromkeys([*self.writes, *other.writes])),
            reads=tuple(dict.fromkeys([*self.reads, *other.reads])),
        )


def brain_needs(deployment: str, cell: str | None, routes: Iterable[str]) -> Needs:
    """`cell` is the id of the Brain's ledger; None where there is none yet."""
    reads = () if cell is None else (topics.updates(deployment, cell),)
    return Needs(writes=tuple(_pool(deployment, routes)), reads=reads)


def hands_needs(deployment: str, routes: Iterable[str]) -> Needs:
    """Where updates go is said by each command."""
    return Needs(reads=tuple(_pool(deployment, routes)))


def asked_routes(agents: Iterable[Harness]) -> list[str]:
    """Routes of Hands that these agents' tools have."""
    found = {each.route for agent in agents for each in agent.bindings.values()}
    return sorted(each for each in found if each and each != "local")


async def require(broker: Broker, needs: Needs) -> None:
    """Return where everything stands, or the broker cannot be asked now.

    Raises:
        NotFound: names everything that is missing, and what makes it.
    """
    if not isinstance(broker, Served):
        return
    try:
        async with asyncio.timeout(START_SECONDS):
            lacks = await broker.lacking(needs.all, reads=needs.reads, create=broker.creates)
    except (BrokerUnavailable, TimeoutError) as error:
        _log.warning(
            "the broker did not answer at the start, it is tried again by itself",
            broker=broker.shown,
            error=error,
        )
        return
    if lacks:
        raise NotFound(
            f"the broker {broker.shown} lacks {', '.join(each.what for each in lacks)}",
            where="--broker",
            next_step="run `nerve provision app.py --broker ...`, or have an operator run:\n"
            + steps(lacks),
        )


def steps(lacks: Iterable[Lack]) -> str:
    """Each command once, in order."""
    return "\n".join(dict.fromkeys(each.step for each in lacks))


def _pool(deployment: str, routes: Iterable[str]) -> Iterable[str]:
    for route in routes:
        yield topics.commands(deployment, route)
        yield topics.controls(deployment, route)
