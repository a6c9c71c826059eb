"""The schema of the Brain's ledger, without loading what makes it."""

from pathlib import Path
from typing import TYPE_CHECKING

from nerve.common.sql import Schema

if TYPE_CHECKING:
    import sqlalchemy as sa


def _metadata() -> "sa.MetaData":
    from nerve.brain.ledger.tables import metadata

    return metadata()


SCHEMA = Schema(
    room="brain",
    version=2,
    oldest_writer=2,
    metadata=_metadata,
    migrations=Path(__file__).parent / "migrations",
)
