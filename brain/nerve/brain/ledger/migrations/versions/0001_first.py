"""The first tables of a Brain ledger."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    _bookkeeping()
    _messages()
    _conversation()
    _turns()
    _runs()
    _intents()
    _hands()
    _public()


def _bookkeeping() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "writer",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "host",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started", sa.Text(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.Column("offers", sa.Text(), nullable=False),
        sa.Column("lease_ms", sa.Integer(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "state = 'LIVE' or state = 'DRAINING' or state = 'RELEASED'", name="state_state"
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "heartbeat",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("counter", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("host"),
    )


def _messages() -> None:
    op.create_table(
        "outbox",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "inbox",
        sa.Column("execution", sa.Text(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state = 'HELD' or state = 'QUARANTINED'", name="state_state"),
        sa.PrimaryKeyConstraint("execution", "sequence"),
    )
    _partial("inbox_due", "inbox", ["next_at"], "state = 'HELD'")
    op.create_table(
        "refused",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _conversation() -> None:
    op.create_table(
        "definition",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("harness", sa.Text(), nullable=False),
        sa.Column("state_version", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("bindings", sa.Text(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("pruned", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state = 'OPEN' or state = 'CLOSED'", name="state_state"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "thread",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("head", sa.Text(), nullable=True),
        sa.Column("next_ordinal", sa.BigInteger(), nullable=False),
        sa.Column("ready_at", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("claimed_at", sa.BigInteger(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(phase = 'IDLE') = (head is null)", name="idle_has_no_head"),
        sa.CheckConstraint("(phase = 'RUNNING') = (host is not null)", name="running_has_host"),
        sa.CheckConstraint(
            "phase = 'IDLE' or phase = 'READY' or phase = 'RUNNING' or phase = 'WAITING'",
            name="phase_state",
        ),
        sa.CheckConstraint("state = 'OPEN' or state = 'CLOSED'", name="state_state"),
        sa.PrimaryKeyConstraint("id"),
    )
    _partial("thread_owned", "thread", ["host"], "phase = 'RUNNING'")
    _partial("thread_ready", "thread", ["definition", "ready_at"], "phase = 'READY'")
    op.create_index("thread_session", "thread", ["session"])
    op.create_table(
        "journal",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("entries", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("settled", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("thread", "position"),
    )


def _turns() -> None:
    op.create_table(
        "turn",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("iterations", sa.BigInteger(), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("said", sa.BigInteger(), nullable=False),
        sa.Column("open_count", sa.BigInteger(), nullable=False),
        sa.Column("wait_mode", sa.Text(), nullable=False),
        sa.Column("settle", sa.Text(), nullable=True),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("pause_intent", sa.BigInteger(), nullable=False),
        sa.Column("pause_revision", sa.BigInteger(), nullable=False),
        sa.Column("retry_policy", sa.Text(), nullable=True),
        sa.Column("retry_count", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.BigInteger(), nullable=True),
        sa.Column("retry_reason", sa.Text(), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("limit_keys", sa.Text(), nullable=True),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("lost_step", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(phase = 'CANCELLED' or phase = 'COMPLETED' or phase = 'FAILED') = (ended_at is not null)",
            name="terminal_has_end",
        ),
        sa.CheckConstraint(
            "phase = 'QUEUED' or phase = 'RUNNING' or phase = 'WAITING' or phase = 'SETTLING' or phase = 'COMPLETED' or phase = 'FAILED' or phase = 'CANCELLED'",
            name="phase_state",
        ),
        sa.CheckConstraint(
            "settle = 'failed' or settle = 'cancelled' or settle = 'limit'", name="settle_reason"
        ),
        sa.CheckConstraint("wait_mode = 'ALL' or wait_mode = 'ANY'", name="wait_mode_known"),
        sa.CheckConstraint("open_count >= 0", name="open_count_natural"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("thread", "ordinal", name="turn_order"),
    )
    _partial("turn_open", "turn", ["id"], "ended_at is null")
    _partial(
        "turn_unblocked", "turn", ["thread"], "phase in ('WAITING', 'SETTLING') and open_count = 0"
    )
    op.create_table(
        "request",
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session", "request_id"),
        sqlite_with_rowid=False,
    )


def _runs() -> None:
    op.create_table(
        "run",
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state = 'PARKED' or state = 'FINISHED' or state = 'FAILED' or state = 'RETRYING' or state = 'HANDED_OVER' or state = 'LOST'",
            name="state_state",
        ),
        sa.PrimaryKeyConstraint("turn", "number"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "step",
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("resumed_from", sa.Text(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state = 'COMPLETED' or state = 'FAILED' or state = 'LOST'", name="state_state"
        ),
        sa.PrimaryKeyConstraint("turn", "run", "number"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "receipt",
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("turn", "key"),
    )


def _intents() -> None:
    op.create_table(
        "intent",
        sa.Column("execution", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("call_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=True),
        sa.Column("arguments", sa.LargeBinary(), nullable=False),
        sa.Column("command", sa.LargeBinary(), nullable=True),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("origin_step", sa.Text(), nullable=False),
        sa.Column("applied_step", sa.Text(), nullable=True),
        sa.Column("hands_host", sa.Text(), nullable=True),
        sa.Column("ledger_id", sa.Text(), nullable=True),
        sa.Column("ledger_epoch", sa.BigInteger(), nullable=True),
        sa.Column("ledger_position", sa.BigInteger(), nullable=True),
        sa.Column("requested_at", sa.BigInteger(), nullable=False),
        sa.Column("admitted_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=True),
        sa.Column("applied_at", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_at", sa.BigInteger(), nullable=True),
        sa.Column("inquiries", sa.BigInteger(), nullable=False),
        sa.Column("next_inquiry_at", sa.BigInteger(), nullable=True),
        sa.Column("settled", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "(state = 'APPLIED') = (applied_at is not null)", name="applied_has_time"
        ),
        sa.CheckConstraint(
            "effect = 'none' or effect = 'completed' or effect = 'unconfirmed'", name="effect_known"
        ),
        sa.CheckConstraint(
            "kind = 'remote' or kind = 'local' or kind = 'delegation' or kind = 'manual' or kind = 'approval' or kind = 'condition'",
            name="kind_state",
        ),
        sa.CheckConstraint(
            "outcome = 'REQUESTED' or outcome = 'ADMITTED' or outcome = 'STARTED' or outcome = 'RECOVERING' or outcome = 'SUCCEEDED' or outcome = 'FAILED' or outcome = 'CANCELLED' or outcome = 'UNKNOWN'",
            name="outcome_known",
        ),
        sa.CheckConstraint(
            "state = 'OPEN' or state = 'RECEIVED' or state = 'APPLIED'", name="state_state"
        ),
        sa.PrimaryKeyConstraint("execution"),
    )
    _partial("intent_inquiry", "intent", ["next_inquiry_at"], "next_inquiry_at is not null")
    op.create_index("intent_turn", "intent", ["turn", "ordinal"])
    _partial("intent_unapplied", "intent", ["turn"], "state <> 'APPLIED'")
    _partial("intent_unknown", "intent", ["requested_at"], "outcome = 'UNKNOWN'")
    _partial(
        "intent_unsettled",
        "intent",
        ["applied_at"],
        "state = 'APPLIED' and settled = 0 and kind = 'remote'",
    )


def _hands() -> None:
    op.create_table(
        "hands_ledger",
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("route"),
    )
    op.create_table(
        "observation",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("execution", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("observation_execution", "observation", ["execution"])


def _public() -> None:
    op.create_table(
        "event",
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=True),
        sa.Column("turn", sa.Text(), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session", "sequence"),
    )
    op.create_table(
        "message",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("thread", "sequence"),
    )


def _partial(name: str, table: str, columns: list[str], where: str) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
