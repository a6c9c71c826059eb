"""Ledgers: laws committed in groups, statements written once, schemas checked at the door."""

from nerve.common.sql.law import ALONE, Again, Law, Row, Tx, Value, law
from nerve.common.sql.ledger import Ledger, LedgerIdentity
from nerve.common.sql.migrate import Schema
from nerve.common.sql.position import next_position
from nerve.common.sql.sqlite_ledger import SqliteLedger, open_sqlite
from nerve.common.sql.statement import Statement, sql

__all__ = [
    "ALONE",
    "Again",
    "Law",
    "Ledger",
    "LedgerIdentity",
    "Row",
    "Schema",
    "SqliteLedger",
    "Statement",
    "Tx",
    "Value",
    "law",
    "next_position",
    "open_sqlite",
    "sql",
]
