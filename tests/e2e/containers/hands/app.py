"""Tools of two pools whose effect is a line in a file outside of every ledger."""

import asyncio
import os
import socket
from pathlib import Path

from nerve.protocol import Catalog

hands = Catalog(route="hands")
shell = Catalog(route="shell")


async def _done(pool: str, key: str, seconds: str) -> str:
    line = f"{key} {socket.gethostname()}\n".encode()
    file = os.open(Path("/work", pool), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(file, line)
    finally:
        os.close(file)
    await asyncio.sleep(float(seconds))
    return key


@hands.tool
async def lift(key: str, seconds: str) -> str:
    """Leave a line and take some time."""
    return await _done("hands", key, seconds)


@shell.tool
async def crawl(key: str, seconds: str) -> str:
    """The same in the other pool."""
    return await _done("shell", key, seconds)
