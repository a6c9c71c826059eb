"""One message of each kind and form, with every identity fixed, for the golden files."""

from typing import Any

from nerve.protocol.commands import ReplyTo, StartCommand, request_digest
from nerve.protocol.content import ImagePart, StructuredPart, TextPart
from nerve.protocol.controls import (
    CancelExecution,
    Hello,
    QueryExecution,
    Question,
    ReadOutput,
    ReplayUpdates,
    RouteQuery,
    SettledExecutions,
)
from nerve.protocol.envelope import Body, Envelope, seal
from nerve.protocol.errors import ToolFailed
from nerve.protocol.execution import (
    Effect,
    ExecutionResult,
    ExecutionState,
    failed_result,
    value_result,
)
from nerve.protocol.identity import Origin, execution_id
from nerve.protocol.objects import ObjectRef, StoreProof
from nerve.protocol.output import data_page, gap_page, reset_page, seal_of
from nerve.protocol.updates import (
    Absence,
    ExecutionUpdate,
    HelloUpdate,
    LedgerMark,
    NotFoundUpdate,
    OutputPageUpdate,
    SnapshotUpdate,
)
from nerve.protocol.version import BUILT, Version

TURN = "t01hf7yat00fhxr0thxk8y2pnqm"
EXECUTION = execution_id(TURN, 1)
NOW = 1_700_000_000_000
BINDING = "sha256:" + "ab" * 32
REPLY = ReplyTo(cell="brain-1")
MARK = LedgerMark(ledger_id="hands-1", epoch=1, position=42)
ARGUMENTS: dict[str, Any] = {"city": "Tromsø 🌌", "days": [1, 2.5, None], "deep": {"ok": True}}
PAGES = (
    reset_page(EXECUTION, 2),
    data_page(EXECUTION, 2, 0, "größer\n".encode()),
    gap_page(EXECUTION, 2, 9, 100, "truncated"),
    data_page(EXECUTION, 2, 109, b"\x00\xff"),
)
SEAL = seal_of(EXECUTION, 2, PAGES)
PROOF = StoreProof(
    address="s3://bucket/prefix",
    ref=ObjectRef(scope="acme/s-1", digest=BINDING, bytes=7),
)


def start() -> StartCommand:
    return StartCommand(
        execution=EXECUTION,
        namespace="acme",
        session="s-1",
        thread="main",
        turn=TURN,
        call_id="call_1",
        tool="forecast",
        tool_version="1",
        binding_digest=BINDING,
        arguments=ARGUMENTS,
        request_digest=request_digest(EXECUTION, "forecast", "1", BINDING, ARGUMENTS),
        origin=Origin(run=f"{TURN}.r1", step=f"{TURN}.r1.s1"),
        reply_to=REPLY,
        attempt_key="k1",
        issued_at=NOW,
        admit_before=NOW + 60_000,
    )


def update(
    sequence: int,
    state: ExecutionState,
    effect: Effect,
    result: ExecutionResult | None = None,
) -> ExecutionUpdate:
    return ExecutionUpdate(
        execution=EXECUTION,
        sequence=sequence,
        state=state,
        effect=effect,
        attempt=0 if state is ExecutionState.ADMITTED else 1,
        result=result,
        host="host-1",
        ledger=MARK,
        at=NOW,
    )


def _rich() -> ExecutionResult:
    image = ImagePart(media_type="image/png", base64="iVBORw0KGgo=")
    parts = (TextPart(text="sunny"), StructuredPart(value={"t": 21.5}), image)
    return ExecutionResult(content=parts, metadata={"source": "station"}, output=SEAL)


def _unknown() -> SnapshotUpdate:
    return SnapshotUpdate(
        execution=EXECUTION,
        sequence=3,
        state=ExecutionState.UNKNOWN,
        effect=Effect.UNCONFIRMED,
        attempt=1,
        code="host_lost",
        reason="the host died while the tool ran",
        host="host-1",
        ledger=MARK,
        at=NOW,
        request_digest=BINDING,
        cancel_requested=True,
        older_commands_arriving=True,
    )


def samples() -> dict[str, Body]:
    """By the name of the golden file."""
    state, effect = ExecutionState, Effect
    failure = failed_result(ToolFailed("no such city", {"city": "Atlantis"}), type="ToolFailed")
    return {
        "command.start": start(),
        "control.query": QueryExecution(execution=EXECUTION, reply_to=REPLY, known_sequence=1),
        "control.cancel": CancelExecution(
            execution=EXECUTION, namespace="acme", reply_to=REPLY, request_id="stop it", reason="?"
        ),
        "control.hello": Hello(reply_to=REPLY, token="token-1", store=PROOF),
        "control.replay": ReplayUpdates(execution=EXECUTION, reply_to=REPLY, from_sequence=2),
        "control.read_output": ReadOutput(execution=EXECUTION, reply_to=REPLY, offset=9),
        "control.settled": SettledExecutions(
            settled=(Question(execution=EXECUTION, known_sequence=3),), reply_to=REPLY
        ),
        "control.route_query": RouteQuery(
            questions=(Question(execution=EXECUTION, known_sequence=1),),
            reply_to=REPLY,
            host="host-1",
        ),
        "update.admitted": update(1, state.ADMITTED, effect.NONE),
        "update.succeeded": update(2, state.SUCCEEDED, effect.COMPLETED, _rich()),
        "update.placeholder": update(
            2, state.SUCCEEDED, effect.COMPLETED, value_result(float("nan"))
        ),
        "update.failed": update(2, state.FAILED, effect.NONE, failure),
        "update.hello": HelloUpdate(
            token="token-1", host="host-1", problem="there is no such object", store=PROOF, at=NOW
        ),
        "update.not_found": NotFoundUpdate(
            execution=EXECUTION, absence=Absence.NEVER_SEEN, host="host-1", ledger=MARK, at=NOW
        ),
        "update.output_page": OutputPageUpdate(
            execution=EXECUTION, pages=PAGES, next_offset=111, seal=SEAL, at=NOW
        ),
        "update.snapshot": _unknown(),
    }


def sealed(body: Body, *, version: Version = BUILT) -> Envelope:
    return seal(
        body=body,
        deployment="dev",
        namespace="acme",
        route="hands",
        issued_at=NOW,
        id="018bcfe5-6800-761c-be32-b086fd54d46f",
        trace={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        version=version,
    )
