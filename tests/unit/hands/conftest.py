"""Fixtures of the Hands tests: a ledger in a temporary folder, on virtual time."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from nerve.common.clock import VirtualClock
from support.hands_ledger import Book, open_book


@pytest.fixture
async def book(tmp_path: Path) -> AsyncGenerator[Book]:
    async with open_book(tmp_path / "hands.db", VirtualClock()) as opened:
        yield opened


@pytest.fixture
async def other(tmp_path: Path, book: Book) -> AsyncGenerator[Book]:
    """A second connection and host on the same ledger."""
    async with open_book(
        tmp_path / "hands.db", book.clock, host="host-2", asker=book.asker
    ) as opened:
        yield opened
