"""Stored output as the wire's pages, and the seal over it."""

from collections.abc import Iterator
from hashlib import sha256

from nerve.common.sql import Row, Tx, sql
from nerve.protocol.output import OutputPage, OutputSeal, PageKind, data_page, gap_page, reset_page

ALL = sql(
    "select attempt, start, kind, length, data, reason from output_page"
    " where execution = :execution and attempt = :attempt order by start, kind desc"
)


async def sealed(tx: Tx, execution: str, attempt: int) -> OutputSeal:
    kept, gap, end = sha256(), 0, 0
    for row in await tx.all(ALL, execution=execution, attempt=attempt):
        if row["kind"] == PageKind.DATA:
            kept.update(row["data"])
        elif row["kind"] == PageKind.GAP:
            gap += row["length"]
        end = row["start"] + row["length"]
    return OutputSeal(
        execution=execution,
        attempt=attempt,
        total_bytes=end,
        gap_bytes=gap,
        digest=f"sha256:{kept.hexdigest()}",
    )


def wire_pages(
    execution: str, rows: Iterator[Row], *, offset: int, limit: int
) -> Iterator[OutputPage]:
    """The pages from `offset` on, cut to it and to about `limit` bytes."""
    left = limit
    for row in rows:
        if left <= 0:
            return
        page = _page(execution, row, offset, left)
        left -= page.length if page.kind is PageKind.DATA else 0
        yield page


def _page(execution: str, row: Row, offset: int, limit: int) -> OutputPage:
    attempt, start, length = row["attempt"], row["start"], row["length"]
    skip = max(0, offset - start)
    if row["kind"] == PageKind.RESET:
        return reset_page(execution, attempt)
    if row["kind"] == PageKind.GAP:
        reason = row["reason"] or ""
        return gap_page(execution, attempt, start + skip, length - skip, reason)
    data: bytes = row["data"]
    return data_page(execution, attempt, start + skip, data[skip : skip + limit])
