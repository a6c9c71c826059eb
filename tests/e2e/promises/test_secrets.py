"""A key that a Brain holds is found nowhere else: not in ledgers, queues, objects, events, errors or logs at DEBUG."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nerve.brain.state.turn import TurnPhase
from support.apart import apart, client

CANARY = "sk-canary-7f3a91b2c4"
APP = '''"""An agent with a live model."""
import os
from nerve.brain.agents.openai import OpenAIModel
from nerve.brain.agents.react import ReactAgent
from nerve.protocol import Catalog

tools = Catalog(route="gpu-pool")

@tools.tool
async def look(place: str) -> str:
    """Looks."""
    return "sunny"

agent = ReactAgent(
    "live", version="1", tools=tools, model=OpenAIModel("m", base_url=os.environ["MODEL_URL"])
)
'''


@asynccontextmanager
async def indiscreet() -> AsyncGenerator[str]:
    """A provider that refuses each request and repeats the whole of it, headers and all."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert CANARY.encode() in head
        said = head.decode().replace("\r\n", " ").replace('"', "'")
        body = f'{{"error":{{"message":"refused: {said}","type":"x"}}}}'.encode()
        head = b"HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.close()
        await server.wait_closed()


def places_of(folder: Path, secret: bytes) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and secret in path.read_bytes()
    ]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.law(8)
@pytest.mark.capability("D1.6", "G7.3")
async def test_a_key_is_found_in_no_file_and_in_no_log_although_the_provider_repeats_it(
    tmp_path: Path,
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "app.py").write_text(APP)
    async with indiscreet() as url, apart(place, tmp_path / "app.py") as at:
        secret = {"OPENAI_API_KEY": CANARY, "MODEL_URL": url, "NERVE_LOG_LEVEL": "DEBUG"}
        brain = await at.brain(**secret)
        # The route was written once, in the app.
        hands = await at.hands(**secret)
        assert "gpu-pool" in hands.said()
        async with client(at) as here:
            turn = await here.submit("s-1", "live", "What is the weather?")
            result = await turn.result(40)
            assert result.phase is TurnPhase.FAILED
            assert result.failure is not None and "refused" in result.failure["message"]
        for command in ("show", "why"):
            code, answer, err = await at.run(command, turn.id, "--json")
            assert code == 0 and CANARY not in f"{answer}{err}"
        await hands.stop()
        await brain.stop()
        assert places_of(place, CANARY.encode()) == []
