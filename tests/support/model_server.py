"""The scripted model server in this process, for tests that speak the real wire to it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nerve.brain.agents.script import Script
from nerve.brain.agents.scripted_server import ScriptedServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    base_url: str
    log: Path

    def requests(self) -> list[dict[str, Any]]:
        """What was asked, by the server's own log."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]


@asynccontextmanager
async def model_server(
    script: list[Any], log: Path, *, pace_seconds: float = 0.0
) -> AsyncGenerator[Address, None]:
    server = ScriptedServer(Script.from_value(script), log=log, pace_seconds=pace_seconds)
    port = await server.start()
    try:
        yield Address(base_url=f"http://127.0.0.1:{port}/v1", log=log)
    finally:
        await server.close()
