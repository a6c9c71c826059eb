"""The scripted server as a process of its own, and what a model sends to it."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from nerve.brain.agents.http import HttpModel
from nerve.brain.agents.models import Model, ModelRequest, OutputSchema, ToolSchema
from nerve.brain.agents.openai import OpenAIModel
from nerve.brain.agents.script import Script
from nerve.brain.agents.scripted_server import ScriptedServer

HELLO = ModelRequest(key="t1/model:1", messages=[{"role": "user", "text": "Hello"}])


SENT: Any = {
    "model": "scripted",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"a":"ø","b":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1_1", "content": "grey"},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Looks.",
                "parameters": {"type": "object"},
            },
        }
    ],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "Weather", "schema": {"type": "object"}},
    },
}


def http_model(base_url: str) -> Model:
    return HttpModel(base_url, "scripted", api_key="k")


def openai_model(base_url: str) -> Model:
    return OpenAIModel("scripted", base_url=base_url, api_key="k")


MODELS = {"stdlib": http_model, "openai": openai_model}


@pytest.mark.parametrize("name", sorted(MODELS))
async def test_the_whole_conversation_is_sent_in_the_form_of_the_wire(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[Any] = []
    neutral = cast("Any", ScriptedServer)._complete

    async def record(self: Any, headers: Any, body: bytes, writer: Any) -> None:
        bodies.append(json.loads(body))
        await neutral(self, headers, body, writer)

    monkeypatch.setattr(ScriptedServer, "_complete", record)
    always: Any = {"when": {}, "text": '{"sky": "grey"}'}
    server = ScriptedServer(Script.from_value([always]))
    port = await server.start()
    image = {"type": "image", "media_type": "image/png", "base64": "aGk="}
    messages: list[Any] = [
        {"role": "user", "parts": [{"type": "text", "text": "Look"}, image], "turn": "t1"},
        {
            "role": "assistant",
            "text": "",
            "calls": [{"id": "call_1_1", "tool": "look", "arguments": {"b": 1, "a": "ø"}}],
            "reasoning": "secret thought",
        },
        {"role": "tool", "call": "call_1_1", "tool": "look", "text": "grey"},
    ]
    request = ModelRequest(
        key="t1/model:1",
        messages=messages,
        instructions="Be brief.",
        tools=[ToolSchema(name="look", description="Looks.", parameters={"type": "object"})],
        output=OutputSchema(name="Weather", schema={"type": "object"}),
    )
    await MODELS[name](f"http://127.0.0.1:{port}/v1").complete(request, lambda _: None)
    await server.close()
    assert bodies == [SENT]


async def test_the_server_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- when: {}\n  text: 'You said $user'\n", "utf-8")
    port_file = tmp_path / "port"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nerve.brain.agents.scripted_server"),
        *("--script", str(script), "--log", str(tmp_path / "log"), "--port-file", str(port_file)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert b"scripted model on" in await process.stdout.readline()
    model = http_model(f"http://127.0.0.1:{port_file.read_text().strip()}/v1")
    answer = await model.complete(HELLO, lambda _: None)
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    assert answer.text == "You said Hello"
    assert (tmp_path / "log").read_text("utf-8").count("t1/model:1") == 1


async def test_a_server_without_a_usable_script_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- {txt: hello}\n", "utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nerve.brain.agents.scripted_server", "--script", str(script)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    assert process.returncode == 2
    assert b"rule 1: unknown txt; known are" in error
    assert b"Traceback" not in error
