"""Which version of the tables this build reads and writes."""

from pathlib import Path
from typing import TYPE_CHECKING

from nerve.common.sql import Schema

if TYPE_CHECKING:
    import sqlalchemy as sa


def _metadata() -> "sa.MetaData":
    from nerve.hands.ledger.tables import metadata

    return metadata()


HANDS_SCHEMA = Schema(
    room="hands",
    version=2,
    oldest_writer=2,
    metadata=_metadata,
    migrations=Path(__file__).parent / "migrations",
)
