"""Conditions that partial indexes, checks and statements must spell alike."""

from nerve.hands.state.record import FINISHABLE, STARTABLE, sql_states
from nerve.protocol.execution import ExecutionState

OPEN = sorted(state for state in ExecutionState if not state.is_terminal)
READY = f"host is null and state in ({sql_states(STARTABLE)})"
OWNED = f"state in ({sql_states(FINISHABLE)})"
UNKNOWN = f"state = '{ExecutionState.UNKNOWN}'"
ENDED = f"state in ({sql_states(s for s in ExecutionState if s.is_settled)})"
REPORTED = "select 1 from report where report.execution = object.owner"
"""Whether a result is kept: Brain has not said yet that it applied it."""
