"""The Hands: run tools and own the truth of each execution."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nerve.hands.authorize import AuthorizationRequest, Authorize
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
    "LocalExecutor": "local",
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
    "LocalExecutor",
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
