"""PostgreSQL ledgers as the command line names them; what needs the extra says so."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nerve.common.clock import Clock, SystemClock
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.protocol.errors import BadInput

if TYPE_CHECKING:
    from nerve.brain.ledger.postgres_backend import PostgresBackend
    from nerve.common.sql.postgres_source import Address
    from nerve.hands.ledger.backend import PostgresStorage


HOST_SECONDS = 60.0
"""How long a host waits for its database when it starts; a client asks once."""


def address_of(settings: Settings) -> "Address":
    """Where the ledger is; its text holds no secret. Raises BadInput."""
    _require_driver()
    from nerve.common.sql.postgres_source import Address

    return Address(settings.database, settings.database_schema or None)


async def brain_backend(
    settings: Settings,
    place: StateDirectory | None,
    *,
    create: bool,
    clock: Clock | None = None,
    observe: Callable[[int, float], None] | None = None,
) -> "PostgresBackend":
    """The Brain's ledger in the database of `settings`; objects stay in the directory."""
    address_of(settings)
    from nerve.brain.ledger.postgres_backend import PostgresBackend
    from nerve.common.objects.files import FileObjects

    return await PostgresBackend.open(
        settings.database,
        schema=settings.database_schema or None,
        create=create,
        objects=None if place is None else FileObjects(place.objects),
        clock=clock or SystemClock(),
        patience_seconds=HOST_SECONDS if create else 0.0,
        observe=observe,
    )


def hands_storage(settings: Settings, *, patient: bool = True) -> "PostgresStorage":
    """The Hands ledger in the database of `settings`; a host waits for it."""
    address_of(settings)
    from nerve.hands.ledger.backend import PostgresStorage

    return PostgresStorage(
        settings.database,
        schema=settings.database_schema or None,
        patience_seconds=HOST_SECONDS if patient else 0.0,
    )


def _require_driver() -> None:
    for module in ("asyncpg", "greenlet"):
        if find_spec(module) is None:
            raise BadInput(
                "a PostgreSQL ledger needs the extra postgres",
                where="--database",
                next_step="pip install 'nerve[postgres]'",
            )
