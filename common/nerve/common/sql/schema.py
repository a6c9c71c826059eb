"""Columns, checks and the tables that every ledger has."""

from collections.abc import Iterable
from enum import StrEnum

import sqlalchemy as sa


def state_check(column: str, states: type[StrEnum]) -> sa.CheckConstraint:
    """The CHECK that admits exactly the members of `states` (law 7)."""
    return one_of(column, (state.value for state in states), name=f"{column}_state")


def one_of(column: str, values: Iterable[str], *, name: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(among(column, values), name=name)


def among(column: str, values: Iterable[str]) -> str:
    """`column in (...)`, written out: SQLite builds a table for a list each time a CHECK is made."""
    return " or ".join(f"{column} = '{value}'" for value in values)


class HostState(StrEnum):
    """LIVE may own; DRAINING finishes what it owns; RELEASED is final for the incarnation."""

    LIVE = "LIVE"
    DRAINING = "DRAINING"
    RELEASED = "RELEASED"


class InboxState(StrEnum):
    """HELD waits for a gap or an object; QUARANTINED waits for a person."""

    HELD = "HELD"
    QUARANTINED = "QUARANTINED"


class ObjectState(StrEnum):
    """STAGED may be in the store; LIVE is referred to; DELETING is the collector's."""

    STAGED = "STAGED"
    LIVE = "LIVE"
    DELETING = "DELETING"


def add_common_tables(metadata: sa.MetaData) -> None:
    """meta, writer, host, heartbeat, outbox, inbox, refused and object, as both sides hold them."""
    _add_owners(metadata)
    _add_mail(metadata)
    _add_objects(metadata)


def _add_owners(metadata: sa.MetaData) -> None:
    sa.Table(
        "meta",
        metadata,
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    sa.Table(
        "writer",
        metadata,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("batch", sa.Integer, nullable=False),
    )
    sa.Table(
        "host",
        metadata,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("process_started", sa.Text, nullable=False),
        sa.Column("boot", sa.Text, nullable=False),
        sa.Column("offers", sa.Text, nullable=False),
        sa.Column("lease_ms", sa.Integer, nullable=False),
        sa.Column("registered_at", sa.BigInteger, nullable=False),
        sa.Column("released_at", sa.BigInteger),
        state_check("state", HostState),
    )
    sa.Table(
        "heartbeat",
        metadata,
        sa.Column("host", sa.Text, primary_key=True),
        sa.Column("counter", sa.BigInteger, nullable=False),
    )


def _add_mail(metadata: sa.MetaData) -> None:
    sa.Table(
        "outbox",
        metadata,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("destination", sa.Text, nullable=False),
        sa.Column("host", sa.Text),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    inbox = sa.Table(
        "inbox",
        metadata,
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("next_at", sa.BigInteger, nullable=False),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        state_check("state", InboxState),
    )
    sa.Index(
        "inbox_due",
        inbox.c.next_at,
        sqlite_where=sa.text("state = 'HELD'"),
        postgresql_where=sa.text("state = 'HELD'"),
    )
    sa.Table(
        "refused",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("received_at", sa.BigInteger, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("head", sa.LargeBinary, nullable=False),
    )


def _add_objects(metadata: sa.MetaData) -> None:
    table = sa.Table(
        "object",
        metadata,
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        state_check("state", ObjectState),
    )
    sa.Index("object_age", table.c.created_at)
