"""A model's server that answers from a script, speaking the real chat-completions wire.

    python -m nerve.brain.agents.scripted_server --script FILE --log FILE --port 0 --port-file F

Each request is one line of the log before it is answered. It stands on the standard library alone.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from nerve.brain.agents.requestlog import append_line
from nerve.brain.agents.script import Chat, Reply, Script, ScriptError, situation_of

BODY_BYTES_MAX = 64 * 1024 * 1024
PIECE_CHARACTERS = 12


class Cut(Exception):
    """The script says that the connection breaks here."""


class ScriptedServer:
    """Serves one script; `pace_seconds` lies between two pieces of an answer."""

    def __init__(
        self, script: Script, *, log: Path | None = None, pace_seconds: float = 0.0
    ) -> None:
        self._script = script
        self._log = log
        self._pace = pace_seconds
        self._server: asyncio.Server | None = None
        self._requests = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen, and say on which port."""
        self._server = await asyncio.start_server(self._serve, host, port)
        return cast("int", self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
                method, path, headers, body = await _request(reader)
                await self._route(method, path, headers, body, writer)
                await writer.drain()
        finally:
            writer.close()

    async def _route(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        writer: asyncio.StreamWriter,
    ) -> None:
        if method == "GET" and path.endswith("/models"):
            _send(writer, 200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})
        elif method == "POST" and path.endswith("/chat/completions"):
            await self._complete(headers, body, writer)
        else:
            _send(writer, 404, _error(f"there is no {method} {path}"))

    async def _complete(
        self, headers: Mapping[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        try:
            asked = json.loads(body)
            messages = _neutral_messages(asked["messages"])
        except (ValueError, KeyError, TypeError) as error:
            _send(writer, 400, _error(f"the request has an unknown form: {error!r}"))
            return
        self._record(headers, messages)
        try:
            reply = self._script.reply(messages)
        except ScriptError as error:
            _send(writer, 422, _error(str(error)))
            return
        await asyncio.sleep(reply.rule.delay_seconds)
        if reply.fault is not None and reply.fault.status is not None:
            after = reply.fault.retry_after
            extra = {} if after is None else {"Retry-After": str(after)}
            _send(writer, reply.fault.status, _error("as the script says"), extra)
        elif asked.get("stream"):
            await self._stream(reply, str(asked.get("model", "scripted")), writer)
        else:
            _send(writer, 200, _completion(reply, str(asked.get("model", "scripted"))))

    def _record(self, headers: Mapping[str, str], messages: Sequence[Chat]) -> None:
        self._requests += 1
        if self._log is None:
            return
        situation = situation_of(messages)
        record = {
            "n": self._requests,
            "key": headers.get("idempotency-key", ""),
            "round": situation.round,
            "user": situation.user[:200],
            "last": situation.last[:200],
        }
        append_line(self._log, record)

    async def _stream(self, reply: Reply, model: str, writer: asyncio.StreamWriter) -> None:
        cut = None if reply.fault is None else reply.fault.cut
        if cut == "connection":
            raise Cut
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        writer.write(f"{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode())
        identity = f"chatcmpl-{self._requests}"
        async for delta in _deltas(reply, cut):
            _event(writer, json.dumps(_chunk(identity, model, {"delta": delta})))
            await writer.drain()
            await asyncio.sleep(self._pace)
        end: dict[str, Any] = {"delta": {}, "finish_reason": _finish(reply)}
        _event(writer, json.dumps(_chunk(identity, model, end)))
        usage = {"id": identity, "object": "chat.completion.chunk", "created": 0, "model": model}
        _event(writer, json.dumps({**usage, "choices": [], "usage": _usage(reply)}))
        _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")


async def _deltas(reply: Reply, cut: str | None) -> AsyncIterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(reply.rule.reasoning):
        yield {"reasoning_content": piece}
    for number, piece in enumerate(_pieces(reply.text)):
        if cut == "text" and number:
            raise Cut
        yield {"content": piece}
    if cut == "text":
        raise Cut
    for index, call in enumerate(reply.calls):
        text = json.dumps(call.arguments) if call.raw_arguments is None else call.raw_arguments
        function = {"name": call.tool, "arguments": ""}
        start = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        yield {"tool_calls": [start]}
        shown = text[: len(text) // 2] if cut == "arguments" else text
        for piece in _pieces(shown):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
        if cut == "arguments":
            raise Cut


def _pieces(text: str) -> list[str]:
    return [text[n : n + PIECE_CHARACTERS] for n in range(0, len(text), PIECE_CHARACTERS)]


def _chunk(identity: str, model: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": identity,
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "finish_reason": None, **choice}],
    }


def _completion(reply: Reply, model: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {
                    "name": call.tool,
                    "arguments": call.raw_arguments or json.dumps(call.arguments),
                },
            }
            for index, call in enumerate(reply.calls)
        ]
    return {
        "id": "chatcmpl",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
        "usage": _usage(reply),
    }


def _finish(reply: Reply) -> str:
    return reply.rule.finish or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Reply) -> dict[str, int] | None:
    usage = reply.rule.usage
    if usage is None:
        return None
    sent, got = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}


def _neutral_messages(messages: Sequence[Mapping[str, Any]]) -> list[Chat]:
    """The journal's form; a tool message gets the name that its call had."""
    tools: dict[str, str] = {}
    neutral: list[Chat] = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            tools[call["id"]] = call["function"]["name"]
        entry = {"role": message["role"], "text": _content(message.get("content"))}
        if message["role"] == "tool":
            entry["tool"] = tools.get(message.get("tool_call_id", ""), "")
        neutral.append(entry)
    return neutral


def _content(content: object) -> str:
    if isinstance(content, list):
        parts = cast("list[Mapping[str, Any]]", content)
        return "".join(part.get("text", "") for part in parts)
    return content if isinstance(content, str) else ""


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "scripted", "code": None}}


def _event(writer: asyncio.StreamWriter, data: str) -> None:
    raw = f"data: {data}\n\n".encode()
    writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")


def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: Mapping[str, Any],
    extra: Mapping[str, str] | None = None,
) -> None:
    raw = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(raw)), **(extra or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} Scripted\r\n{lines}Connection: close\r\n\r\n".encode() + raw)


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    method, path, _ = (await reader.readuntil(b"\r\n")).decode("latin-1").split(" ", 2)
    headers: dict[str, str] = {}
    while line := (await reader.readuntil(b"\r\n")).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    length = min(int(headers.get("content-length", "0")), BODY_BYTES_MAX)
    return method, path, headers, await reader.readexactly(length)


def write_port(file: Path, port: int) -> None:
    """The port appears whole or not at all."""
    temporary = file.with_name(file.name + ".new")
    temporary.write_text(f"{port}\n", encoding="utf-8")
    os.replace(temporary, file)


async def serve(options: argparse.Namespace) -> None:
    server = ScriptedServer(
        Script.from_file(options.script), log=options.log, pace_seconds=options.pace
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    port = await server.start(options.host, options.port)
    if options.port_file is not None:
        write_port(options.port_file, port)
    print(f"scripted model on http://{options.host}:{port}/v1", flush=True)
    await stop.wait()
    await server.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A model's server that answers from a script.")
    parser.add_argument("--script", required=True, type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--port-file", type=Path)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between two pieces")
    try:
        asyncio.run(serve(parser.parse_args(arguments)))
    except ScriptError as error:
        parser.exit(2, f"{error}\n")
    except OSError as error:
        parser.exit(6, f"cannot listen: {error.strerror or error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
