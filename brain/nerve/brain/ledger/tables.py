"""Every table of the Brain's ledger, shaped for the whole product and not only for what runs today."""

from functools import cache
from typing import Any

import sqlalchemy as sa

from nerve.brain.state.intent import IntentKind, IntentState
from nerve.brain.state.run import RunState, StepState
from nerve.brain.state.session import OpenState
from nerve.brain.state.thread import ThreadPhase
from nerve.brain.state.turn import TERMINAL, Settle, TurnPhase
from nerve.common.sql.schema import add_common_tables, among, one_of, state_check
from nerve.protocol.execution import Effect, ExecutionState


def _text(name: str, *, key: bool = False, null: bool = False) -> "sa.Column[str]":
    return sa.Column(name, sa.Text, primary_key=key, nullable=null and not key)


def _integer(name: str, *, key: bool = False, null: bool = False) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger, primary_key=key, nullable=null and not key)


def _bytes(name: str, *, null: bool = False) -> "sa.Column[bytes]":
    return sa.Column(name, sa.LargeBinary, nullable=null)


def _partial(name: str, *columns: "sa.Column[Any]", where: str) -> sa.Index:
    """An index over the rows for which `where` holds: what is over costs nothing in it."""
    condition = sa.text(where)
    return sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition)


@cache
def metadata() -> sa.MetaData:
    """The tables of schema version 1."""
    tables = sa.MetaData()
    add_common_tables(tables)
    _conversation(tables)
    _turns(tables)
    _runs(tables)
    _intents(tables)
    _hands(tables)
    _public(tables)
    return tables


def _conversation(tables: sa.MetaData) -> None:
    sa.Table(
        "definition",
        tables,
        _text("id", key=True),
        _text("agent"),
        _text("version"),
        _text("harness"),
        _text("state_version"),
        _text("digest"),
        _text("bindings"),
        _integer("registered_at"),
    )
    sa.Table(
        "session",
        tables,
        _text("id", key=True),
        _text("namespace"),
        _text("name"),
        _text("state"),
        _text("agent"),
        _integer("sequence"),
        _integer("pruned"),
        _integer("created_at"),
        _integer("closed_at", null=True),
        state_check("state", OpenState),
    )
    thread = sa.Table(
        "thread",
        tables,
        _text("id", key=True),
        _text("session"),
        _text("name"),
        _text("definition"),
        _text("state"),
        _text("phase"),
        _text("head", null=True),
        _integer("next_ordinal"),
        _integer("ready_at"),
        _text("host", null=True),
        _integer("token"),
        _integer("claimed_at", null=True),
        _integer("position"),
        _text("digest"),
        _integer("created_at"),
        _integer("closed_at", null=True),
        state_check("state", OpenState),
        state_check("phase", ThreadPhase),
        sa.CheckConstraint("(phase = 'RUNNING') = (host is not null)", name="running_has_host"),
        sa.CheckConstraint("(phase = 'IDLE') = (head is null)", name="idle_has_no_head"),
    )
    _partial("thread_ready", thread.c.definition, thread.c.ready_at, where="phase = 'READY'")
    _partial("thread_owned", thread.c.host, where="phase = 'RUNNING'")
    sa.Index("thread_session", thread.c.session)
    sa.Table(
        "journal",
        tables,
        _text("thread", key=True),
        _integer("position", key=True),
        _text("turn"),
        _text("step"),
        _bytes("entries"),
        _bytes("state"),
        _text("digest"),
        _text("codec"),
        _integer("settled"),
        _integer("created_at"),
    )


def _turns(tables: sa.MetaData) -> None:
    turn = sa.Table(
        "turn",
        tables,
        _text("id", key=True),
        _text("session"),
        _text("thread"),
        _integer("ordinal"),
        _text("request_id"),
        _text("phase"),
        _text("input"),
        _text("output", null=True),
        _text("failure", null=True),
        _integer("iterations"),
        _integer("runs"),
        _integer("calls"),
        _integer("said"),
        _integer("open_count"),
        _text("wait_mode"),
        _text("settle", null=True),
        _integer("cancel_requested_at", null=True),
        _integer("pause_intent"),
        _integer("pause_revision"),
        _text("retry_policy", null=True),
        _integer("retry_count"),
        _integer("retry_at", null=True),
        _text("retry_reason", null=True),
        _integer("deadline", null=True),
        _integer("not_before", null=True),
        _integer("priority"),
        _text("limit_keys", null=True),
        _text("parent", null=True),
        _text("lost_step", null=True),
        _integer("created_at"),
        _integer("started_at", null=True),
        _integer("ended_at", null=True),
        state_check("phase", TurnPhase),
        one_of("settle", (each.value for each in Settle), name="settle_reason"),
        one_of("wait_mode", ("ALL", "ANY"), name="wait_mode_known"),
        sa.CheckConstraint(
            f"({among('phase', sorted(TERMINAL))}) = (ended_at is not null)",
            name="terminal_has_end",
        ),
        sa.CheckConstraint("open_count >= 0", name="open_count_natural"),
        sa.UniqueConstraint("thread", "ordinal", name="turn_order"),
    )
    _partial("turn_open", turn.c.id, where="ended_at is null")
    _partial(
        "turn_unblocked", turn.c.thread, where="phase in ('WAITING', 'SETTLING') and open_count = 0"
    )
    sa.Table(
        "request",
        tables,
        _text("session", key=True),
        _text("request_id", key=True),
        _text("operation"),
        _text("digest"),
        _text("target"),
        _text("turn", null=True),
        _text("receipt", null=True),
        _integer("created_at"),
        sqlite_with_rowid=False,
    )


def _runs(tables: sa.MetaData) -> None:
    sa.Table(
        "run",
        tables,
        _text("turn", key=True),
        _integer("number", key=True),
        _text("host"),
        _integer("token"),
        _text("state"),
        _text("reason", null=True),
        _integer("started_at"),
        _integer("ended_at"),
        state_check("state", RunState),
        sqlite_with_rowid=False,
    )
    sa.Table(
        "step",
        tables,
        _text("turn", key=True),
        _integer("run", key=True),
        _integer("number", key=True),
        _text("phase"),
        _text("state"),
        _text("resumed_from", null=True),
        _integer("position", null=True),
        _integer("started_at"),
        _integer("ended_at"),
        state_check("state", StepState),
        sqlite_with_rowid=False,
    )
    sa.Table(
        "receipt",
        tables,
        _text("turn", key=True),
        _text("key", key=True),
        _text("step"),
        _bytes("body"),
        _text("codec"),
        _integer("input_tokens", null=True),
        _integer("output_tokens", null=True),
        _integer("attempts"),
        _integer("created_at"),
    )


def _intents(tables: sa.MetaData) -> None:
    intent = sa.Table(
        "intent",
        tables,
        _text("execution", key=True),
        _text("turn"),
        _text("thread"),
        _text("session"),
        _integer("ordinal"),
        _text("call_id"),
        _text("kind"),
        _text("tool"),
        _text("route", null=True),
        _bytes("arguments"),
        _bytes("command", null=True),
        _text("codec"),
        _text("state"),
        _text("outcome"),
        _text("effect"),
        _bytes("result", null=True),
        _text("reason", null=True),
        _integer("attempt"),
        _integer("sequence"),
        _text("origin_step"),
        _text("applied_step", null=True),
        _text("hands_host", null=True),
        _text("ledger_id", null=True),
        _integer("ledger_epoch", null=True),
        _integer("ledger_position", null=True),
        _integer("requested_at"),
        _integer("admitted_at", null=True),
        _integer("completed_at", null=True),
        _integer("received_at", null=True),
        _integer("applied_at", null=True),
        _integer("cancel_requested_at", null=True),
        _integer("inquiries"),
        _integer("next_inquiry_at", null=True),
        _integer("settled"),
        state_check("kind", IntentKind),
        state_check("state", IntentState),
        one_of(
            "outcome",
            ("REQUESTED", *(each.value for each in ExecutionState)),
            name="outcome_known",
        ),
        one_of("effect", (each.value for each in Effect), name="effect_known"),
        sa.CheckConstraint(
            "(state = 'APPLIED') = (applied_at is not null)", name="applied_has_time"
        ),
    )
    sa.Index("intent_turn", intent.c.turn, intent.c.ordinal)
    _partial("intent_unapplied", intent.c.turn, where="state <> 'APPLIED'")
    _partial("intent_inquiry", intent.c.next_inquiry_at, where="next_inquiry_at is not null")
    _partial("intent_unknown", intent.c.requested_at, where="outcome = 'UNKNOWN'")
    _partial(
        "intent_unsettled",
        intent.c.applied_at,
        where="state = 'APPLIED' and settled = 0 and kind = 'remote'",
    )


def _hands(tables: sa.MetaData) -> None:
    """What is known of the other side beside its answers."""
    sa.Table(
        "hands_ledger",
        tables,
        _text("route", key=True),
        _text("id"),
        _integer("epoch"),
        _integer("position"),
        _integer("created_at"),
        _integer("seen_at"),
    )
    observation = sa.Table(
        "observation",
        tables,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        _text("execution"),
        _text("kind"),
        _bytes("body"),
        _integer("created_at"),
    )
    sa.Index("observation_execution", observation.c.execution)


def _public(tables: sa.MetaData) -> None:
    sa.Table(
        "event",
        tables,
        _text("session", key=True),
        _integer("sequence", key=True),
        _text("thread", null=True),
        _text("turn", null=True),
        _text("run", null=True),
        _text("type"),
        _text("body"),
        _integer("created_at"),
    )
    sa.Table(
        "message",
        tables,
        _text("thread", key=True),
        _integer("sequence", key=True),
        _text("session"),
        _text("turn"),
        _text("message"),
        _text("role"),
        _text("body"),
        _integer("created_at"),
    )
