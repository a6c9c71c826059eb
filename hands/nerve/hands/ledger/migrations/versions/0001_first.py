"""The first tables of a Hands ledger."""

from collections.abc import Sequence

from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

TABLES = (
    """
    CREATE TABLE barred (
        execution TEXT NOT NULL,
        until BIGINT NOT NULL,
        code TEXT NOT NULL,
        reason TEXT NOT NULL,
        PRIMARY KEY (execution)
    )
    """,
    """
    CREATE TABLE claim (
        execution TEXT NOT NULL,
        owner TEXT NOT NULL,
        token INTEGER NOT NULL,
        until BIGINT NOT NULL,
        PRIMARY KEY (execution)
    )
    """,
    """
    CREATE TABLE execution (
        id TEXT NOT NULL,
        state TEXT NOT NULL,
        effect TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        host TEXT,
        token INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        repeatable INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        told TEXT,
        namespace TEXT NOT NULL,
        cell TEXT NOT NULL,
        tool TEXT NOT NULL,
        tool_version TEXT NOT NULL,
        binding_digest TEXT NOT NULL,
        request_digest TEXT,
        command BLOB,
        waiting TEXT,
        code TEXT,
        reason TEXT,
        seal TEXT,
        cancel_requested_at BIGINT,
        cancel_reason TEXT,
        admitted_at BIGINT NOT NULL,
        admit_before BIGINT NOT NULL,
        started_at BIGINT,
        ended_at BIGINT,
        forget_at BIGINT,
        PRIMARY KEY (id),
        CONSTRAINT state_state CHECK (state = 'ADMITTED' or state = 'STARTED' or state =
            'RECOVERING' or state = 'SUCCEEDED' or state = 'FAILED' or state = 'CANCELLED' or
            state = 'UNKNOWN'),
        CONSTRAINT effect_state CHECK (effect = 'none' or effect = 'completed' or effect =
            'unconfirmed'),
        CONSTRAINT ended_when_terminal CHECK ((ended_at is null) = (state = 'ADMITTED' or state =
            'RECOVERING' or state = 'STARTED')),
        CONSTRAINT started_has_owner CHECK (state <> 'STARTED' or host is not null),
        CONSTRAINT admitted_not_started CHECK (state <> 'ADMITTED' or attempt = 0)
    )
    """,
    """
    CREATE INDEX execution_forget ON execution (forget_at) WHERE forget_at is not null
    """,
    """
    CREATE INDEX execution_owned ON execution (host) WHERE state in ('RECOVERING', 'STARTED')
    """,
    """
    CREATE INDEX execution_ready ON execution (binding_digest, admitted_at, id) WHERE host is
        null and state in ('ADMITTED', 'RECOVERING')
    """,
    """
    CREATE INDEX execution_unknown ON execution (ended_at) WHERE state = 'UNKNOWN'
    """,
    """
    CREATE TABLE heartbeat (
        host TEXT NOT NULL,
        counter BIGINT NOT NULL,
        PRIMARY KEY (host)
    )
    """,
    """
    CREATE TABLE host (
        id TEXT NOT NULL,
        state TEXT NOT NULL,
        role TEXT NOT NULL,
        pid INTEGER NOT NULL,
        process_started TEXT NOT NULL,
        boot TEXT NOT NULL,
        offers TEXT NOT NULL,
        lease_ms INTEGER NOT NULL,
        registered_at BIGINT NOT NULL,
        released_at BIGINT,
        PRIMARY KEY (id),
        CONSTRAINT state_state CHECK (state = 'LIVE' or state = 'DRAINING' or state = 'RELEASED')
    )
    """,
    """
    CREATE TABLE inbox (
        execution TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        envelope BLOB NOT NULL,
        tries INTEGER NOT NULL,
        next_at BIGINT NOT NULL,
        received_at BIGINT NOT NULL,
        PRIMARY KEY (execution, sequence),
        CONSTRAINT state_state CHECK (state = 'HELD' or state = 'QUARANTINED')
    )
    """,
    """
    CREATE INDEX inbox_due ON inbox (next_at) WHERE state = 'HELD'
    """,
    """
    CREATE TABLE meta (
        "key" TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY ("key")
    )
    """,
    """
    CREATE TABLE observation (
        id INTEGER NOT NULL,
        execution TEXT NOT NULL,
        source TEXT NOT NULL,
        host TEXT,
        token INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        state TEXT NOT NULL,
        effect TEXT NOT NULL,
        result TEXT,
        observed_at BIGINT NOT NULL,
        PRIMARY KEY (id),
        CONSTRAINT state_state CHECK (state = 'ADMITTED' or state = 'STARTED' or state =
            'RECOVERING' or state = 'SUCCEEDED' or state = 'FAILED' or state = 'CANCELLED' or
            state = 'UNKNOWN'),
        CONSTRAINT effect_state CHECK (effect = 'none' or effect = 'completed' or effect =
            'unconfirmed')
    )
    """,
    """
    CREATE INDEX observation_execution ON observation (execution)
    """,
    """
    CREATE TABLE outbox (
        id TEXT NOT NULL,
        destination TEXT NOT NULL,
        host TEXT,
        envelope BLOB NOT NULL,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE output_page (
        execution TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        start BIGINT NOT NULL,
        kind TEXT NOT NULL,
        length BIGINT NOT NULL,
        data BLOB,
        reason TEXT,
        PRIMARY KEY (execution, attempt, start, kind),
        CONSTRAINT kind_state CHECK (kind = 'data' or kind = 'gap' or kind = 'reset')
    )
    """,
    """
    CREATE TABLE receipt (
        request_id TEXT NOT NULL,
        execution TEXT NOT NULL,
        digest TEXT NOT NULL,
        operator TEXT NOT NULL,
        owner TEXT NOT NULL,
        evidence TEXT NOT NULL,
        state TEXT NOT NULL,
        effect TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        reconciled_at BIGINT NOT NULL,
        PRIMARY KEY (request_id),
        CONSTRAINT state_state CHECK (state = 'ADMITTED' or state = 'STARTED' or state =
            'RECOVERING' or state = 'SUCCEEDED' or state = 'FAILED' or state = 'CANCELLED' or
            state = 'UNKNOWN'),
        CONSTRAINT effect_state CHECK (effect = 'none' or effect = 'completed' or effect =
            'unconfirmed')
    )
    """,
    """
    CREATE INDEX receipt_execution ON receipt (execution)
    """,
    """
    CREATE TABLE refused (
        id INTEGER NOT NULL,
        received_at BIGINT NOT NULL,
        topic TEXT NOT NULL,
        code TEXT NOT NULL,
        reason TEXT NOT NULL,
        head BLOB NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE TABLE report (
        execution TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        envelope BLOB NOT NULL,
        PRIMARY KEY (execution, sequence)
    )
    """,
    """
    CREATE TABLE writer (
        id TEXT NOT NULL,
        batch INTEGER NOT NULL,
        PRIMARY KEY (id)
    )
    """,
)


def upgrade() -> None:
    for statement in TABLES:
        op.execute(_spelt(statement))


def _spelt(statement: str) -> str:
    """The two types that PostgreSQL calls otherwise."""
    if op.get_bind().dialect.name == "sqlite":
        return statement
    return statement.replace(" BLOB", " BYTEA").replace(" id INTEGER NOT", " id SERIAL NOT")


def downgrade() -> None:
    raise NotImplementedError("a ledger goes forward only: restore the backup instead")
