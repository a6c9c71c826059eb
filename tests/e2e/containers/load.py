"""Gives Turns to the Brain's ledger from inside its container, and says as JSON how each of them ended.

load.py TOOL PREFIX COUNT TOOL_SECONDS AT_ONCE PATIENCE_SECONDS

With a patience of 0 the Turns are only admitted. Standard output is one object: phase by key, and the
seconds from the submission to the end of those that ended.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from nerve.common.settings import Settings, load
from nerve.deploy.client import Client, client
from nerve.protocol.errors import Timeout
from nerve.protocol.identity import SessionKey


async def one(at: Client, tool: str, key: str, seconds: str, patience: float) -> tuple[str, float]:
    began = time.monotonic()
    turn = await at.runtime.submit(
        SessionKey("tests", key), key, f"{tool} {key} {seconds}", agent="porter"
    )
    if not patience:
        return "admitted", time.monotonic() - began
    try:
        result = await turn.result(timeout=patience)
    except Timeout:
        return "waiting", time.monotonic() - began
    return result.phase.value, time.monotonic() - began


async def main(
    tool: str, prefix: str, count: int, seconds: str, at_once: int, patience: float
) -> None:
    settings: Settings = load()
    gate = asyncio.Semaphore(at_once)
    ended: dict[str, tuple[str, float]] = {}
    async with client(Path("/var/lib/nerve"), settings) as at:

        async def work(number: int) -> None:
            key = f"{prefix}-{number}"
            async with gate:
                ended[key] = await one(at, tool, key, seconds, patience)

        await asyncio.gather(*(work(number) for number in range(count)))
    print(json.dumps({key: list(each) for key, each in ended.items()}))


if __name__ == "__main__":
    words = sys.argv[1:]
    asyncio.run(main(words[0], words[1], int(words[2]), words[3], int(words[4]), float(words[5])))
