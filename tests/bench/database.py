"""What a PostgreSQL server counted, asked with psql, so that it works in any peer's environment."""

import subprocess
from dataclasses import dataclass

OPTIONS = "-c shared_preload_libraries=pg_stat_statements"
_COUNTS = (
    "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"
    " (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,"
    " (select coalesce(sum(calls), 0)::bigint from pg_stat_statements)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Totals of the whole server. `transactions` are those that wrote or locked something."""

    transactions: int
    wal_bytes: int
    statements: int


def ask(url: str, text: str) -> str:
    command = ["psql", "-XAtq", "-F", " ", url, "-c", text]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def prepare(url: str) -> None:
    ask(url, "create extension if not exists pg_stat_statements")
    count_statements(url, on=False)


def counted(url: str) -> Counted:
    transactions, wal_bytes, statements = map(int, ask(url, _COUNTS).split())
    return Counted(transactions=transactions, wal_bytes=wal_bytes, statements=statements)


def count_statements(url: str, *, on: bool) -> None:
    """Off while a rate is taken, since counting costs as much as a small statement."""
    ask(url, f"alter system set pg_stat_statements.track = {'top' if on else 'none'}")
    ask(url, "select pg_reload_conf()")
