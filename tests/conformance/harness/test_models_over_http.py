"""One suite for both models that speak chat completions, against a server that speaks the wire."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from nerve.brain.agents.http import HttpModel
from nerve.brain.agents.models import (
    Delta,
    DeltaKind,
    FailureClass,
    Finish,
    Model,
    ModelAnswerDiscarded,
    ModelCall,
    ModelError,
    ModelRefused,
    ModelRequest,
    ModelTimeout,
    ModelUnavailable,
    classify,
    retry_after_seconds,
)
from nerve.brain.agents.openai import OpenAIModel
from nerve.brain.agents.react import ReactAgent
from nerve.brain.harness import Finished, Parked, Usage
from nerve.brain.testing import Conductor, MemoryHost, new_turn
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import BadInput
from support.model_server import model_server

SECRET = "sk-never-show-this"
NewModel = Callable[..., Model]


def http_model(base_url: str, *, timeout_seconds: float = 10.0, key: str = SECRET) -> Model:
    return HttpModel(base_url, "scripted", api_key=key, timeout_seconds=timeout_seconds)


def openai_model(base_url: str, *, timeout_seconds: float = 10.0, key: str = SECRET) -> Model:
    return OpenAIModel("scripted", base_url=base_url, api_key=key, timeout_seconds=timeout_seconds)


@pytest.fixture(params=[http_model, openai_model], ids=["stdlib", "openai"])
def new_model(request: pytest.FixtureRequest) -> NewModel:
    return cast("NewModel", request.param)


def request_of(*messages: dict[str, Any], key: str = "t1/model:1", **extra: Any) -> ModelRequest:
    return ModelRequest(key=key, messages=list(messages), **extra)


HELLO = request_of({"role": "user", "text": "Hello"})


async def ask(
    new_model: NewModel, script: list[Any], log: Path, request: ModelRequest = HELLO
) -> tuple[Any, list[Delta]]:
    deltas: list[Delta] = []
    async with model_server(script, log) as server:
        answer = await close_after(new_model(server.base_url), request, deltas)
    return answer, deltas


async def close_after(model: Model, request: ModelRequest, deltas: list[Delta]) -> Any:
    try:
        return await model.complete(request, deltas.append)
    finally:
        if isinstance(model, OpenAIModel):
            await model.close()


async def test_an_answer_comes_whole_and_in_pieces(new_model: NewModel, tmp_path: Path) -> None:
    text = "It will be sunny in Tromsø tomorrow, 21 °C \U0001f31e."
    usage = {"input_tokens": 12, "output_tokens": 7}
    answer, deltas = await ask(
        new_model, [{"text": text, "reasoning": "secret thought", "usage": usage}], tmp_path / "log"
    )
    assert answer.text == text
    assert answer.reasoning == "secret thought"
    assert answer.usage == Usage(input_tokens=12, output_tokens=7)
    assert answer.finish is Finish.STOP
    assert "".join(delta.text for delta in deltas) == text
    assert len(deltas) > 2


async def test_tool_calls_come_with_the_arguments_as_they_were_written(
    new_model: NewModel, tmp_path: Path
) -> None:
    calls = [
        {"tool": "look", "arguments": {"place": "Oslo"}},
        {"tool": "look", "raw_arguments": '{"place": "a", "place": "b"}'},
    ]
    answer, deltas = await ask(new_model, [{"text": "Wait", "calls": calls}], tmp_path / "log")
    assert answer.calls == (
        ModelCall(tool="look", arguments='{"place": "Oslo"}'),
        ModelCall(tool="look", arguments='{"place": "a", "place": "b"}'),
    )
    assert answer.finish is Finish.TOOL_CALLS
    pieces = [each for each in deltas if each.kind is DeltaKind.ARGUMENTS and each.index == 1]
    assert "".join(piece.text for piece in pieces) == '{"place": "a", "place": "b"}'
    assert {piece.tool for piece in pieces} == {"look"}


@pytest.mark.parametrize("cut", ["connection", "text", "arguments"])
@pytest.mark.report("U108")
@pytest.mark.capability("C5.1")
async def test_a_cut_stream_is_a_retryable_failure_and_no_answer(
    new_model: NewModel, tmp_path: Path, cut: str
) -> None:
    calls = [{"tool": "look", "arguments": {"place": "Oslo" * 20}}]
    rule = {"text": "some words more than one piece", "calls": calls, "fault": {"cut": cut}}
    with pytest.raises(ModelError) as raised:
        await ask(new_model, [rule], tmp_path / "log")
    assert classify(raised.value) is FailureClass.TRANSIENT


@pytest.mark.report("U108")
async def test_nothing_runs_of_an_answer_that_was_cut_inside_its_arguments(
    new_model: NewModel, tmp_path: Path
) -> None:
    calls = [{"tool": "look", "arguments": {"place": "Oslo"}}]
    script = [{"calls": calls, "fault": {"cut": "arguments"}}, "done"]
    tools = Catalog()
    tools.tool(look)
    async with model_server(script, tmp_path / "log") as server:
        model = new_model(server.base_url)
        conductor = Conductor(lambda: ReactAgent("a", model=model, tools=tools), {"look": look})
        turn = new_turn("Go")
        with pytest.raises(ModelAnswerDiscarded):
            await conductor.step(turn)
        assert conductor.entries == [] and turn.host.receipts == {}
        assert isinstance(await conductor.step(turn), Parked)
        assert conductor.ran == ["look"]
        assert isinstance(await conductor.step(turn), Finished)
        assert [line["key"] for line in server.requests()] == [
            f"{turn.id}/model:1",
            f"{turn.id}/model:1",
            f"{turn.id}/model:2",
        ]
        if isinstance(model, OpenAIModel):
            await model.close()


def look(place: str) -> str:
    return f"sunny in {place}"


@pytest.mark.capability("C5.1", "C5.2")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ModelRefused),
        (401, ModelRefused),
        (404, ModelRefused),
        (408, ModelUnavailable),
        (429, ModelUnavailable),
        (500, ModelUnavailable),
        (503, ModelUnavailable),
    ],
)
async def test_an_http_status_is_classified_and_never_retried_inside(
    new_model: NewModel, tmp_path: Path, status: int, kind: type[ModelError]
) -> None:
    fault = {"status": status, "retry_after": 3, "times": 9}
    with pytest.raises(ModelError) as raised:
        await ask(new_model, [{"text": "x", "fault": fault}], tmp_path / "log")
    assert type(raised.value) is kind
    assert raised.value.status == status
    assert retry_after_seconds(raised.value) == 3.0
    assert (tmp_path / "log").read_text().count("\n") == 1


async def test_no_server_and_a_silent_server_are_worth_another_try(new_model: NewModel) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ModelTimeout):
        model = new_model(f"http://127.0.0.1:{port}/v1", timeout_seconds=0.1)
        await close_after(model, HELLO, [])
    server.close()
    await server.wait_closed()
    with pytest.raises(ModelUnavailable) as raised:
        await close_after(new_model(f"http://127.0.0.1:{port}/v1"), HELLO, [])
    assert classify(raised.value) is FailureClass.TRANSIENT


@pytest.mark.parametrize(
    "reply",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {not json\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: [1]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: [DONE]\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 900\r\n\r\ndata: {}\n\n",
        b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"error": {"message": "x"}}\n\n',
        b"",
    ],
)
async def test_a_damaged_reply_is_discarded_and_worth_another_try(
    new_model: NewModel, reply: bytes
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ModelError) as raised:
        await close_after(new_model(f"http://127.0.0.1:{port}/v1"), HELLO, [])
    server.close()
    await server.wait_closed()
    assert classify(raised.value) is FailureClass.TRANSIENT


async def test_a_key_that_the_server_repeats_is_not_shown(new_model: NewModel) -> None:
    body = f'{{"error": {{"message": "wrong key {SECRET} given"}}}}'.encode()
    head = b"HTTP/1.1 401 No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert SECRET.encode() in await reader.readuntil(b"\r\n\r\n")
        writer.write(head % len(body) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    model = new_model(f"http://127.0.0.1:{port}/v1")
    with pytest.raises(ModelRefused) as raised:
        await close_after(model, HELLO, [])
    server.close()
    await server.wait_closed()
    shown = f"{raised.value} {raised.value.to_json()} {model!r} {model.__dict__}"
    assert "wrong key *** given" in shown
    assert SECRET not in shown


@pytest.mark.capability("A7.3", "A7.4")
async def test_a_turn_over_the_wire_shows_previews_and_no_reasoning(
    new_model: NewModel, tmp_path: Path
) -> None:
    script = [
        {
            "text": "I look it up.",
            "reasoning": "a secret thought",
            "calls": [{"tool": "look", "arguments": {"place": "Oslo"}}],
        },
        {"when": {"tool": "look"}, "text": "Tomorrow: $last", "reasoning": "a secret thought"},
    ]
    tools = Catalog()
    tools.tool(look)
    host = MemoryHost()
    async with model_server(script, tmp_path / "log") as server:
        model = new_model(server.base_url)
        conductor = Conductor(lambda: ReactAgent("a", model=model, tools=tools), {"look": look})
        ended = await conductor.turn("Go", host=host)
        if isinstance(model, OpenAIModel):
            await model.close()
    assert [message.text for message in ended.messages] == [
        "I look it up.",
        "Tomorrow: sunny in Oslo",
    ]
    shown = [body for kind, body in host.previews if kind == "message.delta"]
    for number, message in enumerate(ended.messages, 1):
        pieces = [body for body in shown if body["message_id"] == f"{ended.turn}.m{number}"]
        assert "".join(cast("str", body["text"]) for body in pieces) == message.text
    public = f"{ended.messages} {host.previews}"
    assert "secret" not in public


def test_a_missing_key_names_the_places_to_put_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    model = OpenAIModel("gpt-any", base_url="http://127.0.0.1:1/v1")
    with pytest.raises(BadInput, match="OPENAI_API_KEY"):
        asyncio.run(model.complete(HELLO, lambda _: None))


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    model = OpenAIModel("gpt-any", api_key=SECRET)
    with pytest.raises(BadInput, match=r"pip install 'nerve\[openai\]'"):
        asyncio.run(model.complete(HELLO, lambda _: None))
