"""Physical topics and consumer groups, derived alike on both sides from deployment and route.

The tenant's namespace is a field of every envelope and never part of a topic.
"""

from typing import Final

from nerve.protocol.errors import InvalidName
from nerve.protocol.identity import check_route

# `nerve.<deployment>.updates.<cell>` has the shape of a route's topic.
_RESERVED: Final = "updates"


def commands(deployment: str, route: str) -> str:
    return f"nerve.{_pool(deployment, route)}.commands"


def controls(deployment: str, route: str) -> str:
    return f"nerve.{_pool(deployment, route)}.controls"


def updates(deployment: str, cell: str) -> str:
    """`cell` is the id of the Brain ledger that asked; its Brain replicas share the topic."""
    return f"nerve.{check_route(deployment, 'deployment')}.{_RESERVED}.{check_route(cell, 'cell')}"


def hints(deployment: str, route: str | None) -> str:
    """Where the hosts of a pool, or the Brains (`route` None), wake each other; apart from all work."""
    if route is None:
        return f"nerve.{check_route(deployment, 'deployment')}.hints"
    return f"nerve.{_pool(deployment, route)}.hints"


def group(topic: str) -> str:
    """The one consumer group of a topic: all replicas that share a ledger share it."""
    return f"{topic}.group"


def _pool(deployment: str, route: str) -> str:
    if route == _RESERVED:
        raise InvalidName(
            f"the route {_RESERVED!r} is reserved", where="route", next_step="Use another name"
        )
    return f"{check_route(deployment, 'deployment')}.{check_route(route)}"
