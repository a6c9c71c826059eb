"""What can be seen of a host from outside: its row, its lock, and whether it holds up writers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from nerve.common import process
from nerve.common.liveness import LockSight
from nerve.common.sql import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class HostView:
    """One host for `doctor` and `why`."""

    id: str
    role: str
    state: str
    mark: process.ProcessMark
    offers: Mapping[str, Any]
    registered_at: int
    lock: LockSight
    writing: bool
    """It keeps every other from writing at this moment: for long only where it is frozen."""


def view_of(row: Row, lock: LockSight, writer: int | None) -> HostView:
    mark = mark_of(row)
    return HostView(
        id=row["id"],
        role=row["role"],
        state=row["state"],
        mark=mark,
        offers=orjson.loads(row["offers"]),
        registered_at=row["registered_at"],
        lock=lock,
        writing=writer == mark.pid and process.is_same(mark),
    )


def mark_of(row: Row) -> process.ProcessMark:
    """The process that a row of `host` names."""
    return process.ProcessMark(pid=row["pid"], started=row["process_started"], place=row["boot"])
