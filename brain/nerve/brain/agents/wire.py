"""The chat-completions wire: a request body, server-sent events, and an answer from its pieces.

Both models that speak this wire share it. Only an answer that says why it ended is an answer: a
stream that breaks off, inside arguments or elsewhere, is discarded whole.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from nerve.brain.agents.models import (
    Delta,
    DeltaKind,
    Finish,
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelCall,
    ModelError,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
    OnDelta,
    status_error,
)
from nerve.brain.harness import Usage
from nerve.protocol.canonical import INTEGER_MAX, canonical_bytes

ANSWER_CHARACTERS_MAX = 8 * 1024 * 1024
CALLS_MAX = 128
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def request_body(
    model: str, request: ModelRequest, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON body of a streaming chat completion."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages_of(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        **(options or {}),
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    if request.output is not None:
        name = _NOT_A_NAME.sub("_", request.output.name)[:64]
        schema = {"name": name, "schema": request.output.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def messages_of(request: ModelRequest) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": request.instructions}] if request.instructions else []
    entries = cast("Sequence[Mapping[str, Any]]", request.messages)
    return [*system, *map(_message, entries)]


def _message(entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry["role"] == "tool":
        return {"role": "tool", "tool_call_id": entry["call"], "content": entry["text"]}
    if entry["role"] == "user":
        text = entry.get("text")
        content = [_part(part) for part in entry["parts"]] if text is None else text
        return {"role": "user", "content": content}
    message: dict[str, Any] = {"role": "assistant", "content": entry["text"] or None}
    if entry.get("calls"):
        message["tool_calls"] = [_call(call) for call in entry["calls"]]
    elif not entry["text"]:
        message["content"] = ""
    return message


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = canonical_bytes(call["arguments"]).decode()
    function = {"name": call["tool"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": function}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["text"]}
        case "structured":
            return {"type": "text", "text": canonical_bytes(part["value"]).decode()}
        case "image":
            return {"type": "image_url", "image_url": {"url": _url(part)}}
        case "audio" if "base64" in part:
            form = part["media_type"].rpartition("/")[2]
            audio = {"data": part["base64"], "format": {"mpeg": "mp3"}.get(form, form)}
            return {"type": "input_audio", "input_audio": audio}
        case kind:
            raise ModelRefused(
                f"this wire cannot carry a part of type {kind} like this one",
                where="messages",
                next_step="Send text, structured data, images, or audio as base64",
            )


def _url(part: Mapping[str, Any]) -> str:
    if "url" in part:
        return cast("str", part["url"])
    return f"data:{part['media_type']};base64,{part['base64']}"


@dataclass(slots=True)
class EventStream:
    """The `data` of server-sent events, from bytes in any pieces."""

    _rest: bytes = b""
    _data: list[bytes] = field(default_factory=list[bytes])

    def feed(self, piece: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > ANSWER_CHARACTERS_MAX:
            raise ModelAnswerDiscarded("an event of the answer is too long", where="stream")
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                yield b"\n".join(self._data).decode("utf-8", "replace")
                self._data.clear()


@dataclass(slots=True)
class _PartialCall:
    tool: str = ""
    pieces: list[str] = field(default_factory=list[str])


class Assembly:
    """Puts the chunks of one streamed answer together, and previews them."""

    def __init__(self, on_delta: OnDelta, where: str) -> None:
        self._on_delta = on_delta
        self._where = where
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._ids: dict[str, int] = {}
        self._usage: Usage | None = None
        self._finish: str | None = None
        self._size = 0

    def event(self, data: str) -> bool:
        """Take one event; True where it says that the stream is over."""
        if data.strip() == "[DONE]":
            return True
        try:
            chunk = json.loads(data)
        except ValueError:
            raise self._cut("an event is not JSON") from None
        if not isinstance(chunk, dict):
            raise self._cut("an event is not an object")
        self.chunk(cast("dict[str, Any]", chunk))
        return False

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            raise stream_error(chunk["error"], self._where)
        try:
            self._usage = _usage(chunk.get("usage")) or self._usage
            for choice in chunk.get("choices") or ():
                if choice.get("index", 0) == 0:
                    self._delta(choice.get("delta") or choice.get("message") or {})
                    self._finish = choice.get("finish_reason") or self._finish
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._cut(f"an event has an unknown form ({type(error).__name__})") from None

    def answer(self) -> ModelAnswer:
        """The whole answer; an error where it did not end by itself."""
        if self._finish is None:
            inside = "the arguments of a tool call" if self._calls else "the answer"
            raise self._cut(f"the stream ended inside {inside}")
        refused = bool(self._refusal)
        # Servers leave the arguments of a call without any out, and a cut at the token limit does
        # so as well: that one must not become a call with defaults.
        absent = "" if self._finish == Finish.LENGTH else "{}"
        calls = [self._calls[index] for index in sorted(self._calls)]
        return ModelAnswer(
            text=_whole(self._refusal if refused else self._text),
            calls=tuple(
                ModelCall(tool=_whole([call.tool]), arguments=_whole(call.pieces) or absent)
                for call in calls
            ),
            usage=self._usage,
            reasoning=_whole(self._reasoning),
            finish=Finish.FILTERED if refused else _finish(self._finish, bool(calls)),
        )

    def _delta(self, delta: Mapping[str, Any]) -> None:
        self._add(self._text, delta.get("content"), DeltaKind.TEXT)
        self._add(self._refusal, delta.get("refusal"), None)
        self._add(self._reasoning, delta.get("reasoning_content") or delta.get("reasoning"), None)
        for place, piece in enumerate(delta.get("tool_calls") or ()):
            self._call(place, piece)

    def _call(self, place: int, piece: Mapping[str, Any]) -> None:
        index = self._index(place, piece)
        call = self._calls.setdefault(index, _PartialCall())
        if len(self._calls) > CALLS_MAX:
            raise self._cut(f"more than {CALLS_MAX} tool calls in one answer")
        function: Mapping[str, Any] = piece.get("function") or {}
        call.tool = call.tool or str(function.get("name") or "")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        self._add(call.pieces, arguments, DeltaKind.ARGUMENTS, index, call.tool)

    def _index(self, place: int, piece: Mapping[str, Any]) -> int:
        """Some servers leave the index out: then the id tells the calls apart, else the place."""
        index = piece.get("index")
        if isinstance(index, int):
            return index
        identity = piece.get("id")
        if identity:
            return self._ids.setdefault(str(identity), len(self._ids))
        return max(self._calls, default=place)

    def _add(
        self,
        pieces: list[str],
        text: object,
        kind: DeltaKind | None,
        index: int = 0,
        tool: str = "",
    ) -> None:
        if text is None or text == "":
            return
        if not isinstance(text, str):
            raise TypeError("text is expected")
        self._size += len(text)
        if self._size > ANSWER_CHARACTERS_MAX:
            raise self._cut(f"the answer is longer than {ANSWER_CHARACTERS_MAX} characters")
        pieces.append(text)
        if kind is not None:
            self._on_delta(Delta(kind=kind, text=text, index=index, tool=tool))

    def _cut(self, what: str) -> ModelAnswerDiscarded:
        return ModelAnswerDiscarded(f"{what}: nothing of this answer was used", where=self._where)


def stream_error(error: object, where: str) -> ModelError:
    """What a server says in the place of an answer."""
    body: Mapping[str, Any] = cast("Any", error) if isinstance(error, Mapping) else {}
    message = str(body.get("message", error))[:300]
    status = body.get("status") or body.get("code")
    if isinstance(status, int) and 400 <= status <= 599:
        return status_error(status, message, where=where)
    return ModelUnavailable(f"the model's server failed: {message}", where=where)


def error_text(raw: bytes) -> str:
    """The message of an error reply, whatever its form."""
    try:
        body = json.loads(raw)
        error: Any = body["error"]
        return str(cast("Any", error)["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode("utf-8", "replace").strip()


def _finish(reason: str, has_calls: bool) -> Finish:
    if reason in (Finish.LENGTH, Finish.FILTERED):
        return Finish(reason)
    return Finish.TOOL_CALLS if has_calls else Finish.STOP


def _usage(value: Any) -> Usage | None:
    if not value:
        return None
    sent, got = value.get("prompt_tokens"), value.get("completion_tokens")
    return Usage(input_tokens=_count(sent), output_tokens=_count(got))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= INTEGER_MAX else None


def _whole(pieces: Sequence[str]) -> str:
    """Joins the pieces; a character whose halves came in two pieces becomes one."""
    text = "".join(pieces)
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
