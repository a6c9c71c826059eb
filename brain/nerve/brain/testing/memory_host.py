"""A harness's host in memory, which can stop, refuse or die at any operation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nerve.brain.harness import Boundary, Receipt
from nerve.protocol.canonical import JsonValue, canonical_bytes, read_strict


class ContractBroken(AssertionError):
    """A harness did what its port forbids."""


def require(holds: bool, rule: str) -> None:
    if not holds:
        raise ContractBroken(rule)


class Crash(BaseException):
    """The host process dies here: nothing that was not committed survives."""


@dataclass
class MemoryHost:
    """Implements `HarnessHost` over the committed receipts of one Turn.

    `boundaries` are the answers to come, then GO_ON; `crash_at` dies before the n-th operation.
    """

    receipts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    boundaries: list[Boundary] = field(default_factory=list[Boundary])
    crash_at: int | None = None
    refuse: Exception | None = None
    operations: int = 0
    crashed: bool = False
    previews: list[tuple[str, Mapping[str, JsonValue]]] = field(default_factory=list[Any])
    attempts: list[tuple[str, int, str | None]] = field(default_factory=list[Any])

    async def receipt(self, key: str) -> JsonValue | None:
        self._operation()
        raw = self.receipts.get(key)
        return None if raw is None else read_strict(raw)

    async def put_receipt(self, receipt: Receipt) -> None:
        self._operation()
        if self.refuse is not None:
            raise self.refuse
        self.keep(receipt)
        self._operation()

    async def boundary(self) -> Boundary:
        self._operation()
        return self.boundaries.pop(0) if self.boundaries else Boundary.GO_ON

    def observe_attempt(self, key: str, *, attempt: int, error: str | None) -> None:
        self.attempts.append((key, attempt, error))

    def emit(self, kind: str, body: Mapping[str, JsonValue]) -> None:
        canonical_bytes(body)
        self.previews.append((kind, dict(body)))

    def keep(self, receipt: Receipt) -> None:
        require(receipt.key not in self.receipts, f"the receipt {receipt.key} is written twice")
        self.receipts[receipt.key] = canonical_bytes(receipt.value)

    def _operation(self) -> None:
        self.operations += 1
        if self.operations == self.crash_at:
            self.crashed = True
            raise Crash
