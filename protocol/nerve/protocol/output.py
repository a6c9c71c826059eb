"""What a tool prints while it runs: pages by byte offset, explicit gaps and resets, the seal.

Offsets count bytes of what the tool produced, gaps included. Pages belong to one attempt of one
execution; a new attempt begins with a reset page at offset 0.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from enum import StrEnum
from hashlib import sha256
from typing import Final, Self

from pydantic import model_validator

from nerve.protocol.errors import BadInput, Damaged, DigestMismatch
from nerve.protocol.identity import ExecutionField
from nerve.protocol.wire import Count, Digest, Ordinal, Reason, Wire

PAGE_BYTES_MAX: Final = 64 * 1024


class PageKind(StrEnum):
    DATA = "data"
    GAP = "gap"
    RESET = "reset"


class Encoding(StrEnum):
    UTF8 = "utf-8"
    BASE64 = "base64"


class OutputPage(Wire):
    """`length` bytes from `offset`; a gap says that they existed and are not kept."""

    execution: ExecutionField
    attempt: Ordinal
    kind: PageKind
    offset: Count
    length: Count
    encoding: Encoding | None = None
    data: str | None = None
    reason: Reason | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind is not PageKind.DATA:
            if self.data is not None or self.encoding is not None:
                raise ValueError(f"a {self.kind} page carries no data")
            if self.kind is PageKind.RESET and (self.offset or self.length):
                raise ValueError("a reset page stands at offset 0 and is empty")
        elif len(self.bytes) != self.length:
            raise ValueError("length is not the number of bytes in data")
        return self

    @property
    def bytes(self) -> bytes:
        """The bytes as the tool wrote them; empty for gap and reset."""
        if self.data is None or self.encoding is None:
            return b""
        if self.encoding is Encoding.UTF8:
            return self.data.encode()
        try:
            return base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("base64 is damaged") from None

    @property
    def end(self) -> int:
        return self.offset + self.length


class OutputSeal(Wire):
    """After it no page follows: `digest` covers the bytes kept, in order, without the gaps."""

    execution: ExecutionField
    attempt: Ordinal
    total_bytes: Count
    gap_bytes: Count = 0
    digest: Digest


def data_page(execution: str, attempt: int, offset: int, data: bytes) -> OutputPage:
    """Text stays readable; what is no storable text travels as base64."""
    text = _as_text(data)
    return OutputPage(
        execution=execution,
        attempt=attempt,
        kind=PageKind.DATA,
        offset=offset,
        length=len(data),
        encoding=Encoding.BASE64 if text is None else Encoding.UTF8,
        data=base64.b64encode(data).decode() if text is None else text,
    )


def gap_page(execution: str, attempt: int, offset: int, length: int, reason: str) -> OutputPage:
    return OutputPage(
        execution=execution,
        attempt=attempt,
        kind=PageKind.GAP,
        offset=offset,
        length=length,
        reason=reason,
    )


def reset_page(execution: str, attempt: int, reason: str = "a new attempt began") -> OutputPage:
    return OutputPage(
        execution=execution, attempt=attempt, kind=PageKind.RESET, offset=0, length=0, reason=reason
    )


def pages_of(
    execution: str, attempt: int, offset: int, data: bytes, *, page_bytes: int = PAGE_BYTES_MAX
) -> Iterator[OutputPage]:
    """Cut at character boundaries where the data is text, so that pages stay text."""
    start = 0
    while start < len(data):
        end = _cut(data, start, min(start + page_bytes, len(data)))
        yield data_page(execution, attempt, offset + start, data[start:end])
        start = end


def seal_of(execution: str, attempt: int, pages: Iterable[OutputPage]) -> OutputSeal:
    """The seal over the pages of one attempt; they must follow each other without a hole."""
    assembly = Assembly(execution, attempt)
    for page in pages:
        assembly.add(page)
    return assembly.seal()


class Assembly:
    """Follows the pages of one execution in order: ignores repeats, refuses holes, checks seals."""

    def __init__(self, execution: str, attempt: int = 1) -> None:
        self.execution = execution
        self.attempt = attempt
        self.end = 0
        self.gap_bytes = 0
        self._hash = sha256()

    def add(self, page: OutputPage) -> bool:
        """Whether the page was new; a page of a later attempt starts over."""
        if page.execution != self.execution:
            raise BadInput(f"a page of {page.execution}", where=self.execution)
        if page.kind is PageKind.RESET and page.attempt > self.attempt:
            self.__init__(self.execution, page.attempt)  # type: ignore[misc]
            return True
        if page.attempt != self.attempt or page.kind is PageKind.RESET:
            return False
        if page.end <= self.end:
            return False
        if page.offset != self.end:
            raise Damaged(
                f"output continues at {page.offset}, expected {self.end}",
                where=self.execution,
                next_step=f"Read the output again from offset {self.end}",
            )
        self.end = page.end
        if page.kind is PageKind.GAP:
            self.gap_bytes += page.length
        else:
            self._hash.update(page.bytes)
        return True

    def seal(self) -> OutputSeal:
        return OutputSeal(
            execution=self.execution,
            attempt=self.attempt,
            total_bytes=self.end,
            gap_bytes=self.gap_bytes,
            digest=f"sha256:{self._hash.hexdigest()}",
        )

    def check(self, seal: OutputSeal) -> None:
        """Raises where what was read is not what was sealed."""
        if seal != self.seal():
            raise DigestMismatch(
                f"the output read is not the sealed one of {seal.total_bytes} bytes",
                where=self.execution,
                next_step="Read the output again from offset 0",
            )


def _as_text(data: bytes) -> str | None:
    if b"\x00" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _cut(data: bytes, start: int, end: int) -> int:
    if end == len(data):
        return end
    for cut in range(end, max(start, end - 4), -1):
        if data[cut] & 0xC0 != 0x80:
            return cut
    return end
