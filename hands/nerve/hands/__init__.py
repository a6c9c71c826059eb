"""The Hands: run tools and own the truth of each execution."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nerve.hands.authorize import AuthorizationRequest, Authorize
    from nerve.hands.ledger.backend import HandsBackend, HandsStorage, LocalStorage, PostgresStorage
    from nerve.hands.local import LocalExecutor
    from nerve.hands.operations import (
        ExecutionReconciliation,
        ExecutionStore,
        ReconciliationReceipt,
        UnknownExecutionView,
        Work,
    )
    from nerve.hands.tools.context import tool_context
    from nerve.hands.worker import WorkerRuntime

_PLACES = {
    "AuthorizationRequest": "authorize",
    "Authorize": "authorize",
    "ExecutionReconciliation": "operations",
    "ExecutionStore": "operations",
    "HandsBackend": "ledger.backend",
    "HandsStorage": "ledger.backend",
    "LocalExecutor": "local",
    "LocalStorage": "ledger.backend",
    "PostgresStorage": "ledger.backend",
    "ReconciliationReceipt": "operations",
    "UnknownExecutionView": "operations",
    "Work": "operations",
    "WorkerRuntime": "worker",
    "tool_context": "tools.context",
}

__all__ = [
    "AuthorizationRequest",
    "Authorize",
    "ExecutionReconciliation",
    "ExecutionStore",
    "HandsBackend",
    "HandsStorage",
    "LocalExecutor",
    "LocalStorage",
    "PostgresStorage",
    "ReconciliationReceipt",
    "UnknownExecutionView",
    "Work",
    "WorkerRuntime",
    "tool_context",
]


def __getattr__(name: str) -> Any:  # The type of each name is in the block above.
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)
