"""Whether an acknowledgement ever came before the flush of its commit, by the shim's log alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bench.shim import Event

UNFLUSHED = "/broker.db-wal"
"""Claims and acknowledgements of nerve's queue file are not flushed: losing one repeats a delivery.
What is published there is confirmed to a relay and never to a driver; the broker's own tests hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`early` names acknowledgements ahead of their flush, `bare` counts commits without a flush.

    `unseen` acknowledgements left no mark in any WAL page (stored in another encoding, or cut by a
    page's edge), so that nothing is said about them.
    """

    checked: int
    early: tuple[str, ...]
    unseen: int
    commits: int
    bare: int

    @property
    def holds(self) -> bool:
        return not self.early and not self.bare and self.checked > self.unseen


@dataclass(slots=True)
class _File:
    """The flushes of one WAL file as (begun, ended), and its commits that no flush followed."""

    flushes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    begun: dict[int, int] = field(default_factory=dict[int, int])
    commits: int = 0
    dirty: bool = False
    bare: int = 0

    def take(self, event: Event) -> None:
        match event.kind:
            case "W":
                self.commits += 1
                self.bare += self.dirty
                self.dirty = True
            case "B":
                self.begun[event.thread] = event.ns
            case "F":
                self.flushes.append((self.begun.pop(event.thread, event.ns), event.ns))
                self.dirty = False
            case _:
                pass

    def flushed_at(self, written: int) -> int | None:
        """When the first flush that began after `written` ended."""
        return min((ended for begun, ended in self.flushes if begun >= written), default=None)


def judge(log: Iterable[Event], acknowledged: Mapping[str, int]) -> Verdict:
    """`acknowledged` says at which monotonic nanosecond the driver was told of each mark."""
    files: dict[str, _File] = defaultdict(_File)
    written: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for event in log:
        if not event.path.endswith("-wal"):
            continue
        if event.kind == "M":
            written[event.mark].append((event.ns, event.path))
        files[event.path].take(event)
    early, unseen = list[str](), 0
    for mark, told in acknowledged.items():
        if mark not in written:
            unseen += 1
            continue
        ns, path = min(written[mark])
        flushed = files[path].flushed_at(ns)
        if flushed is None or flushed > told:
            early.append(mark)
    return Verdict(
        checked=len(acknowledged),
        early=tuple(early),
        unseen=unseen,
        commits=sum(file.commits for file in files.values()),
        bare=sum(file.bare for path, file in files.items() if not path.endswith(UNFLUSHED)),
    )
