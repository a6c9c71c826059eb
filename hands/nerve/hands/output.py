"""What one attempt writes while it runs: gathered into pages, bounded, sealed at its end."""

import threading
from collections.abc import Callable, Sequence
from hashlib import sha256

from nerve.hands.ledger.pages import Page
from nerve.protocol.output import PAGE_BYTES_MAX, OutputSeal, PageKind

OUTPUT_BYTES_MAX = 8 * 1024 * 1024


class Output:
    """Written from any thread; read and sealed on the event loop."""

    def __init__(
        self,
        execution: str,
        attempt: int,
        *,
        wake: Callable[[], None],
        bytes_max: int = OUTPUT_BYTES_MAX,
    ) -> None:
        self._execution = execution
        self._attempt = attempt
        self._wake = wake
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._start = 0
        self._dropped = 0
        self._hash = sha256()
        self._reset = attempt > 1
        self._closed = False

    def write(self, data: bytes) -> None:
        """Keep `data`, or count it as a gap where the output is full; after the end nothing counts."""
        with self._lock:
            if self._closed:
                return
            room = self._bytes_max - self._start - len(self._buffer)
            if self._dropped or len(data) > room:
                kept = 0 if self._dropped else max(0, room)
                self._dropped += len(data) - kept
                data = data[:kept]
            was_empty = not self._buffer
            self._buffer += data
        if data and was_empty:
            self._wake()

    def take(self) -> Sequence[Page]:
        """The pages that were written since the last call."""
        with self._lock:
            return self._take()

    def close(self) -> tuple[Sequence[Page], OutputSeal | None]:
        """The last pages and the seal; no seal where nothing was ever written."""
        with self._lock:
            self._closed = True
            pages = list(self._take())
            total = self._start + self._dropped
            if self._dropped:
                reason = f"output is kept up to {self._bytes_max} bytes"
                pages.append(
                    Page(kind=PageKind.GAP, start=self._start, length=self._dropped, reason=reason)
                )
            return pages, self._seal(total) if total else None

    def _take(self) -> Sequence[Page]:
        pages: list[Page] = []
        if self._reset:
            self._reset = False
            pages.append(Page(kind=PageKind.RESET, start=0, length=0, reason="a new attempt began"))
        for begin in range(0, len(self._buffer), PAGE_BYTES_MAX):
            data = bytes(self._buffer[begin : begin + PAGE_BYTES_MAX])
            pages.append(Page(kind=PageKind.DATA, start=self._start, length=len(data), data=data))
            self._start += len(data)
            self._hash.update(data)
        self._buffer.clear()
        return pages

    def _seal(self, total: int) -> OutputSeal:
        return OutputSeal(
            execution=self._execution,
            attempt=self._attempt,
            total_bytes=total,
            gap_bytes=self._dropped,
            digest=f"sha256:{self._hash.hexdigest()}",
        )
