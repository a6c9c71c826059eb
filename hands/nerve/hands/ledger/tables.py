"""The tables of a Hands ledger. Imported to create or migrate one, never on the way of a call."""

import sqlalchemy as sa

from nerve.common.sql.schema import add_common_tables, among, one_of, state_check
from nerve.hands.ledger.conditions import OPEN, OWNED, READY, UNKNOWN
from nerve.protocol.execution import Effect, ExecutionState
from nerve.protocol.output import PageKind


def metadata() -> sa.MetaData:
    tables = sa.MetaData()
    add_common_tables(tables)
    _execution(tables)
    _report(tables)
    _output_page(tables)
    _barred(tables)
    _observation(tables)
    _reconciliation(tables)
    return tables


def _partial(name: str, *columns: sa.Column[object], where: str) -> None:
    condition = sa.text(where)
    sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


def _execution(tables: sa.MetaData) -> None:
    """One row per execution that was admitted or cancelled before it could be."""
    table = sa.Table(
        "execution",
        tables,
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("host", sa.Text),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("repeatable", sa.Integer, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("told", sa.Text),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("cell", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("tool_version", sa.Text, nullable=False),
        sa.Column("binding_digest", sa.Text, nullable=False),
        sa.Column("request_digest", sa.Text),
        sa.Column("command", sa.LargeBinary),
        sa.Column("waiting", sa.Text),
        sa.Column("code", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("seal", sa.Text),
        sa.Column("cancel_requested_at", sa.BigInteger),
        sa.Column("cancel_reason", sa.Text),
        sa.Column("admitted_at", sa.BigInteger, nullable=False),
        sa.Column("admit_before", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("forget_at", sa.BigInteger),
        state_check("state", ExecutionState),
        state_check("effect", Effect),
        sa.CheckConstraint(
            f"(ended_at is null) = ({among('state', OPEN)})", name="ended_when_terminal"
        ),
        sa.CheckConstraint("state <> 'STARTED' or host is not null", name="started_has_owner"),
        sa.CheckConstraint("state <> 'ADMITTED' or attempt = 0", name="admitted_not_started"),
    )
    _partial(
        "execution_ready",
        table.c.binding_digest,
        table.c.admitted_at,
        table.c.id,
        where=READY,
    )
    _partial("execution_owned", table.c.host, where=OWNED)
    _partial("execution_unknown", table.c.ended_at, where=UNKNOWN)
    _partial("execution_forget", table.c.forget_at, where="forget_at is not null")


def _report(tables: sa.MetaData) -> None:
    """Every update as it was sealed, so that a replay sends the same bytes."""
    sa.Table(
        "report",
        tables,
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
    )


def _output_page(tables: sa.MetaData) -> None:
    sa.Table(
        "output_page",
        tables,
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary),
        sa.Column("reason", sa.Text),
        one_of("kind", (kind.value for kind in PageKind), name="kind_state"),
    )


def _barred(tables: sa.MetaData) -> None:
    """Commands that were refused and answered so: they stay refused until they expire by themselves."""
    sa.Table(
        "barred",
        tables,
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )


def _observation(tables: sa.MetaData) -> None:
    """What an owner that had lost its execution still brought: evidence for a person."""
    table = sa.Table(
        "observation",
        tables,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("execution", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("host", sa.Text),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.Column("observed_at", sa.BigInteger, nullable=False),
        state_check("state", ExecutionState),
        state_check("effect", Effect),
    )
    sa.Index("observation_execution", table.c.execution)


def _reconciliation(tables: sa.MetaData) -> None:
    """Who holds an UNKNOWN execution for reconciling, and the audit of what was decided."""
    sa.Table(
        "claim",
        tables,
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
    )
    receipt = sa.Table(
        "receipt",
        tables,
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("execution", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("operator", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("effect", sa.Text, nullable=False),
        sa.Column("sequence", sa.Integer, nullable=False),
        sa.Column("reconciled_at", sa.BigInteger, nullable=False),
        state_check("state", ExecutionState),
        state_check("effect", Effect),
    )
    sa.Index("receipt_execution", receipt.c.execution)
