"""What is public about a call that ran inside a Step: told with the receipts that keep it."""

from collections.abc import Sequence
from typing import Any

import orjson

from nerve.brain.ledger.events import NewEvent
from nerve.brain.ledger.step_unit import NewReceipt, Place
from nerve.protocol.content import Message, Role, TextPart

SHOWN_CHARACTERS = 4096
_PREFIX, _STARTED, _ENDED = "tool:", ":started", ":ended"


def told_of(at: Place, receipt: NewReceipt) -> Sequence[NewEvent]:
    """The facts that a receipt of a local call brings; none for any other receipt.

    A call whose start may be repeated keeps only its end, which then tells of both.
    """
    if not receipt.key.startswith(_PREFIX):
        return ()
    kept: dict[str, Any] = orjson.loads(receipt.body)
    if receipt.key.endswith(_STARTED):
        return [_requested(at, receipt.key.removeprefix(_PREFIX).removesuffix(_STARTED), kept)]
    if receipt.key.endswith(_ENDED):
        return [_received(at, receipt.key.removeprefix(_PREFIX).removesuffix(_ENDED), kept)]
    return ()


def _requested(at: Place, call_id: str, kept: dict[str, Any]) -> NewEvent:
    body = {"call_id": call_id, "tool": kept["tool"], "kind": "local", "step_id": at.step_id}
    return NewEvent(type="tool.requested", thread=at.thread, turn=at.turn, run=at.run_id, body=body)


def _received(at: Place, call_id: str, kept: dict[str, Any]) -> NewEvent:
    said = Message(role=Role.TOOL, parts=(TextPart(text=kept["text"][:SHOWN_CHARACTERS]),))
    body = {
        "call_id": call_id,
        "tool": kept["tool"],
        "step_id": at.step_id,
        "state": kept["state"],
        "effect": kept["effect"],
        "message": said.to_json(),
    }
    return NewEvent(type="tool.received", thread=at.thread, turn=at.turn, run=at.run_id, body=body)
