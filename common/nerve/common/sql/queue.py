"""Units that wait for a lane of a server ledger, at most one per conflict key on its way."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nerve.common.sql.law import ALONE


class Keyed(Protocol):
    @property
    def keys(self) -> Sequence[str]: ...


@dataclass(slots=True)
class KeyedQueue:
    """First in, first out for each key; units of different keys pass each other.

    A unit with the key `ALONE` is a batch of its own. Others may be under way meanwhile: against
    those the locks of the server stand.
    """

    _waiting: deque[Any]
    _busy: set[str]

    @classmethod
    def empty(cls) -> "KeyedQueue":
        return cls(deque(), set())

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entry: Keyed) -> None:
        self._waiting.append(entry)

    def take(self, most: int) -> list[Any]:
        """Up to `most` units whose keys are free, which are busy from now on."""
        taken: list[Any] = []
        passed: deque[Any] = deque()
        blocked: set[str] = set()
        while self._waiting and len(taken) < most:
            entry = self._waiting.popleft()
            keys = entry.keys
            alone = ALONE in keys
            if alone and taken:
                passed.append(entry)
                break
            if self._busy.isdisjoint(keys) and blocked.isdisjoint(keys):
                taken.append(entry)
                self._busy.update(key for key in keys if key != ALONE)
                if alone:
                    break
            else:
                passed.append(entry)
                blocked.update(key for key in keys if key != ALONE)
        passed.extend(self._waiting)
        self._waiting = passed
        return taken

    def done(self, entries: Sequence[Keyed]) -> None:
        for entry in entries:
            self._busy.difference_update(entry.keys)
