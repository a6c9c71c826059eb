"""Fixtures of the Hands tests: a ledger of each kind, on virtual time."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from nerve.common.clock import VirtualClock
from support.hands_ledger import Book, open_book
from support.servers.postgres import database

LEDGERS = ["sqlite", pytest.param("postgres", marks=pytest.mark.external)]


@pytest.fixture(params=LEDGERS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Path | str]:
    """Where the ledger of a test is: a file or a database."""
    if request.param == "sqlite":
        yield tmp_path / "hands.db"
        return
    async with database() as url:
        yield url


@pytest.fixture
async def book(place: Path | str) -> AsyncGenerator[Book]:
    async with open_book(place, VirtualClock()) as opened:
        yield opened


@pytest.fixture
async def other(place: Path | str, book: Book) -> AsyncGenerator[Book]:
    """A second connection and host on the same ledger."""
    async with open_book(place, book.clock, host="host-2", asker=book.asker) as opened:
        yield opened
