"""What one step of a Run hands to the ledger, and the verdict it gets back."""

from collections.abc import Sequence
from enum import StrEnum

import orjson

from nerve.brain.ledger.events import NewEvent
from nerve.brain.state.turn import Settle, TurnPhase
from nerve.common.outbox import OutboxRow, Relay
from nerve.common.record import record
from nerve.protocol.identity import run_id, step_id
from nerve.protocol.objects import ObjectRef

PLAIN, ELSEWHERE = "plain", "object"
"""How a row of the journal is to be read: as it stands, or as the reference of an object."""
SETTLE = "SETTLE"
"""The phase of a Step that only settles; it belongs to no Run."""


class Next(StrEnum):
    """What becomes of the Turn. CONTINUE keeps the Thread (local tools, receipts that must stand);
    SETTLE ends the invocation of a Turn that still has to learn what its tools did."""

    CONTINUE = "CONTINUE"
    PARK = "PARK"
    FINISH = "FINISH"
    FAIL = "FAIL"
    RETRY = "RETRY"
    SETTLE = "SETTLE"
    SETTLED = "SETTLED"


@record
class NewCheckpoint:
    """Canonical bytes of the new entries and the new state, at the position they make.

    With a `ref` both stand in the object store by now, and the row only says where.
    """

    position: int
    entries: bytes
    state: bytes
    digest: str
    ref: ObjectRef | None = None

    @property
    def stored(self) -> tuple[bytes, bytes, str]:
        """(entries, state, codec) of its row."""
        if self.ref is None:
            return self.entries, self.state, PLAIN
        return orjson.dumps(self.ref.to_json()), b"", ELSEWHERE


@record
class NewReceipt:
    key: str
    body: bytes
    input_tokens: int | None
    output_tokens: int | None
    attempts: int


@record
class NewIntent:
    execution: str
    ordinal: int
    call_id: str
    kind: str
    tool: str
    route: str | None
    arguments: bytes
    command: bytes | None
    next_inquiry_at: int | None


@record
class RetryAt:
    at: int
    count: int
    policy: str
    reason: str


@record
class Place:
    """Which Step of which Run speaks, as whose owner, over which checkpoint."""

    thread: str
    session: str
    turn: str
    host: str
    token: int
    run: int
    step: int
    run_started_at: int
    step_started_at: int
    resumed_from: str | None
    position: int
    digest: str
    phase: str = "ADVANCE"

    @property
    def run_id(self) -> str:
        return run_id(self.turn, self.run)

    @property
    def step_id(self) -> str:
        return step_id(self.run_id, self.step)


@record
class Advance:
    """One Step, decided in memory and committed as a whole or not at all."""

    at: Place
    next: Next
    now: int
    checkpoint: NewCheckpoint | None = None
    receipts: Sequence[NewReceipt] = ()
    applied: Sequence[str] = ()
    intents: Sequence[NewIntent] = ()
    outgoing: Sequence[OutboxRow] = ()
    objects: Sequence[ObjectRef] = ()
    """What the intents refer to; it is durable by now."""
    relay: Relay | None = None
    messages: Sequence[NewEvent] = ()
    iterations: int = 0
    calls: int = 0
    said: int = 0
    wait_mode: str = "ALL"
    output: str | None = None
    failure: str | None = None
    end: TurnPhase = TurnPhase.COMPLETED
    retry: RetryAt | None = None
    settle: Settle | None = None
    public: Sequence[NewEvent] = ()


class Verdict(StrEnum):
    """COMMITTED; FENCED: another owns the Thread; CANCEL_FIRST: the Turn was cancelled meanwhile,
    nothing was written and the Turn has to settle; READY: committed, and the Turn may go on at once."""

    COMMITTED = "COMMITTED"
    READY = "READY"
    FENCED = "FENCED"
    CANCEL_FIRST = "CANCEL_FIRST"
