"""What a harness sees of its host during one Run."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from nerve.brain.harness import Boundary, Receipt
from nerve.brain.ledger.step_unit import NewReceipt
from nerve.common.sql import Ledger, Tx, sql
from nerve.protocol.canonical import JsonValue, canonical_bytes
from nerve.protocol.errors import TooLarge

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Largest model answer, result of a step or final output that a ledger takes."""

RECEIPTS = sql("select key, body from receipt where turn = :turn")

Emit = Callable[[str, str, Mapping[str, Any]], None]
"""`emit(turn, kind, body)`: a preview on its way to whoever watches now."""


class RunHost:
    """Receipts, boundary and observations of one Turn; implements `HarnessHost`."""

    def __init__(
        self,
        ledger: Ledger,
        turn: str,
        *,
        may_have_receipts: bool,
        commit_receipt: Callable[[NewReceipt], Awaitable[None]],
        emit: Emit,
    ) -> None:
        self._ledger = ledger
        self._turn = turn
        self._known: dict[str, JsonValue] | None = None if may_have_receipts else {}
        self._commit_receipt = commit_receipt
        self._emit = emit
        self._attempts: dict[str, int] = {}
        self.stop = False
        self.model_seconds = 0.0
        self._asked_at = time.perf_counter()

    async def receipt(self, key: str) -> JsonValue | None:
        if self._known is None:
            self._known = await self._ledger.read(self._load)
        return self._known.get(key)

    async def put_receipt(self, receipt: Receipt) -> None:
        await self._commit_receipt(self.sealed(receipt))
        self.remember(receipt)

    def remember(self, receipt: Receipt) -> None:
        """A receipt that was committed by this Run."""
        if self._known is not None:
            self._known[receipt.key] = receipt.value

    def sealed(self, receipt: Receipt) -> NewReceipt:
        usage = receipt.usage
        return NewReceipt(
            key=receipt.key,
            # Refuses what JSON cannot carry exactly.
            body=within_limit(canonical_bytes(receipt.value), receipt.key),
            input_tokens=None if usage is None else usage.input_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            attempts=self._attempts.get(receipt.key, 0),
        )

    async def boundary(self) -> Boundary:
        return Boundary.STOP if self.stop else Boundary.GO_ON

    def observe_attempt(self, key: str, *, attempt: int, error: str | None) -> None:
        self._attempts[key] = attempt

    def emit(self, kind: str, body: Mapping[str, JsonValue]) -> None:
        self._emit(self._turn, kind, body)

    async def _load(self, tx: Tx) -> dict[str, JsonValue]:
        rows = await tx.all(RECEIPTS, turn=self._turn)
        return {row["key"]: orjson.loads(row["body"]) for row in rows}


def within_limit(encoded: bytes, what: str) -> bytes:
    """What an agent wants kept, as it came. Raises TooLarge, which ends the Turn: asking again
    would buy the same."""
    if len(encoded) > ANSWER_BYTES_MAX:
        raise TooLarge(
            f"{len(encoded)} bytes are more than a ledger keeps of one answer ({ANSWER_BYTES_MAX})",
            where=what,
            next_step="let the agent say less, or put the bulk elsewhere and name it by a URL",
        )
    return encoded
