"""The numbered scripts and the tables say the same."""

import sqlite3

import pytest

from nerve.common.sql.migrate import ddl, run_migrations
from nerve.hands.ledger import HANDS_SCHEMA

SHAPE = "select type, name, sql from sqlite_master where name not like 'sqlite_%' order by name"


def normal(statement: str | None) -> str:
    return (
        " ".join((statement or "").replace("\t", " ").split()).replace("( ", "(").replace(" )", ")")
    )


def shape(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    rows = connection.execute(SHAPE).fetchall()
    return [(kind, name, normal(text)) for kind, name, text in rows if name != "alembic_version"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_migrated_ledger_equals_a_fresh_one() -> None:
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    for statement in ddl(HANDS_SCHEMA):
        fresh.execute(statement)
    migrated = sqlite3.connect(":memory:", isolation_level=None)
    run_migrations(migrated, HANDS_SCHEMA)
    assert shape(migrated) == shape(fresh)
    fresh.close()
    migrated.close()
