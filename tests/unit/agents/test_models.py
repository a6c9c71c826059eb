"""How failures are classified, and how streamed pieces become one answer or none."""

import asyncio
import ssl
from typing import Any

import pytest

from nerve.brain.agents.chat import Conversation
from nerve.brain.agents.http import HttpModel, seconds
from nerve.brain.agents.models import (
    Delta,
    FailureClass,
    Finish,
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelCall,
    ModelError,
    ModelRefused,
    ModelRequest,
    ModelTimeout,
    ModelUnavailable,
    classify,
    retry_after_seconds,
    status_error,
)
from nerve.brain.agents.wire import Assembly, EventStream, error_text, messages_of
from nerve.brain.harness import Usage
from nerve.protocol.errors import (
    BadInput,
    BindingMismatch,
    Conflict,
    Damaged,
    DefinitionMissing,
    Fenced,
    LedgerUnavailable,
    Refused,
    RequestConflict,
    SchemaTooNew,
    Timeout,
    Unavailable,
    WrongState,
    rebuild,
)


class ForeignStatusError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("x")
        self.status_code = status


class TransportError(Exception):
    """As httpx names the root of its connection errors."""


class ReadError(TransportError):
    pass


T, P = FailureClass.TRANSIENT, FailureClass.PERMANENT
EOF = asyncio.IncompleteReadError(b"", 1)
CERTIFICATE = ssl.SSLCertVerificationError(1, "x")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModelUnavailable("x"), T),
        (ModelTimeout("x"), T),
        (ModelAnswerDiscarded("x"), T),
        (ModelRefused("x"), P),
        (ModelError("x"), P),
        *((status_error(status, "x", where="x"), T) for status in (408, 409, 425, 429, 500, 599)),
        *((status_error(status, "x", where="x"), P) for status in (302, 400, 401, 403, 404, 422)),
        *((ForeignStatusError(status), T) for status in (429, 503)),
        (ForeignStatusError(400), P),
        (ReadError("x"), T),
        (TimeoutError(), T),
        (ConnectionResetError(), T),
        (OSError(5, "input/output error"), T),
        (EOF, T),
        (FileNotFoundError(2, "x"), P),
        (PermissionError(13, "x"), P),
        (CERTIFICATE, P),
        (KeyError("x"), P),
        (ValueError("x"), P),
        (RecursionError(), P),
        (Unavailable("x"), T),
        (LedgerUnavailable("x"), T),
        (Timeout("x"), T),
        (Conflict("x"), T),
        (WrongState("x"), T),
        (RequestConflict("x"), P),
        (BindingMismatch("x"), P),
        (BadInput("x"), P),
        (Damaged("x"), P),
        (Refused("x"), P),
        (Fenced("x"), FailureClass.INTERRUPTED),
        (asyncio.CancelledError(), FailureClass.INTERRUPTED),
        (DefinitionMissing("x"), FailureClass.INCOMPATIBLE),
        (SchemaTooNew("x"), FailureClass.INCOMPATIBLE),
        (ExceptionGroup("x", [TimeoutError(), ConnectionError()]), T),
        (ExceptionGroup("x", [TimeoutError(), ValueError()]), P),
        (
            BaseExceptionGroup("x", [TimeoutError(), asyncio.CancelledError()]),
            FailureClass.INTERRUPTED,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_failure_has_one_class(error: BaseException, expected: FailureClass) -> None:
    assert classify(error) is expected


def test_an_error_keeps_its_status_and_travels() -> None:
    error = status_error(429, "slow down", where="model", retry_after_seconds=2.5)
    assert retry_after_seconds(error) == 2.5
    assert retry_after_seconds(ValueError()) is None
    assert error.to_json()["details"] == {"status": 429}
    assert rebuild(error.to_json()).message.endswith(error.message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("9e9", 3600.0), ("Wed, 21 Oct", None), (None, None)],
)
def test_retry_after_is_read_in_seconds(text: str | None, expected: float | None) -> None:
    assert seconds(text) == expected


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call_piece(index: Any, arguments: Any, name: str | None = None, id: Any = None) -> Any:
    piece: dict[str, Any] = {"index": index, "function": {"arguments": arguments}, "id": id}
    if name is not None:
        piece["function"]["name"] = name
    return chunk({"tool_calls": [{key: item for key, item in piece.items() if item is not None}]})


def assembled(*chunks: Any) -> tuple[ModelAnswer, list[Delta]]:
    deltas: list[Delta] = []
    assembly = Assembly(deltas.append, "model")
    for each in chunks:
        assembly.chunk(each)
    return assembly.answer(), deltas


def test_pieces_become_calls_in_the_order_of_their_index() -> None:
    answer, _ = assembled(
        call_piece(1, "", "second", "b"),
        call_piece(0, '{"a"', "first", "a"),
        call_piece(1, '{"b": 2}'),
        call_piece(0, ": 1}"),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": None}},
    )
    assert answer.calls == (
        ModelCall(tool="first", arguments='{"a": 1}'),
        ModelCall(tool="second", arguments='{"b": 2}'),
    )
    assert answer.usage == Usage(input_tokens=3)


def test_calls_without_an_index_are_told_apart_by_their_id() -> None:
    answer, _ = assembled(
        call_piece(None, '{"a": 1}', "first", "x"),
        call_piece(None, '{"b"', "second", "y"),
        call_piece(None, ": 2}"),
        chunk({}, "stop"),
    )
    assert [call.arguments for call in answer.calls] == ['{"a": 1}', '{"b": 2}']
    assert answer.finish is Finish.TOOL_CALLS


@pytest.mark.report("U108")
def test_absent_arguments_are_none_only_where_the_answer_is_whole() -> None:
    whole, _ = assembled(call_piece(0, "", "clean"), chunk({}, "tool_calls"))
    cut, _ = assembled(call_piece(0, "", "clean"), chunk({}, "length"))
    assert (whole.calls[0].arguments, cut.calls[0].arguments) == ("{}", "")


@pytest.mark.report("U106")
def test_halves_of_a_character_in_two_pieces_become_one() -> None:
    answer, _ = assembled(
        chunk({"content": "a\ud83c"}), chunk({"content": "\udf1e"}), chunk({}, "stop")
    )
    assert answer.text == "a\U0001f31e"


def test_a_refusal_is_no_answer() -> None:
    answer, deltas = assembled(chunk({"refusal": "I may not."}), chunk({}, "stop"))
    assert (answer.text, answer.finish) == ("I may not.", Finish.FILTERED)
    assert deltas == []


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [chunk({"content": "half"})],
        [call_piece(0, '{"a', "look")],
        [{"choices": 7}],
        [{"choices": [7]}],
        [chunk({"content": 7}, "stop")],
        [chunk({"tool_calls": 7}, "stop")],
        [chunk({"tool_calls": [{"index": 0, "function": {"arguments": 7}}]}, "stop")],
        [call_piece(index, "{}", "look") for index in range(200)],
        [chunk({"content": "x" * 5_000_000})] * 2,
    ],
)
def test_what_did_not_end_by_itself_or_has_no_form_is_no_answer(chunks: list[Any]) -> None:
    with pytest.raises(ModelAnswerDiscarded):
        assembled(*chunks)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "busy", "code": 429}, ModelUnavailable),
        ({"message": "no", "code": 400}, ModelRefused),
        ({"message": "broken", "code": "server_error"}, ModelUnavailable),
        ("text", ModelUnavailable),
    ],
)
def test_an_error_in_the_stream_is_classified(error: Any, kind: type[ModelError]) -> None:
    with pytest.raises(ModelError) as raised:
        assembled({"error": error})
    assert type(raised.value) is kind


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_come_out_of_bytes_in_any_pieces(size: int) -> None:
    raw = (
        ': hi\r\ndata: {"a":\r\ndata: "ø"}\r\n\r\nevent: x\ndata:second\n\n\n\ndata: lost'.encode()
    )
    stream = EventStream()
    pieces = [raw[n : n + size] for n in range(0, len(raw), size)]
    events = [event for piece in pieces for event in stream.feed(piece)]
    assert events == ['{"a":\n"ø"}', "second"]


def test_error_replies_of_any_form_have_a_text() -> None:
    assert error_text(b'{"error": {"message": "a"}}') == "a"
    assert error_text(b'{"error": "b"}') == "b"
    assert error_text(b"<html>c</html>\xff") == "<html>c</html>\ufffd"


def test_parts_that_the_wire_cannot_carry_are_refused() -> None:
    video: Any = {"type": "video", "media_type": "video/mp4", "url": "https://example.org/a.mp4"}
    audio: Any = {"type": "audio", "media_type": "audio/mpeg", "base64": "aGk="}
    sent = messages_of(ModelRequest(key="k", messages=[{"role": "user", "parts": [audio]}]))
    assert sent[0]["content"][0]["input_audio"] == {"data": "aGk=", "format": "mp3"}
    with pytest.raises(ModelRefused, match="video"):
        messages_of(ModelRequest(key="k", messages=[{"role": "user", "parts": [video]}]))


@pytest.mark.parametrize("url", ["ftp://x/v1", "nonsense", "https://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="http or https"):
        HttpModel(url, "m")


def test_a_conversation_shows_what_was_there_when_it_was_made() -> None:
    old: list[Any] = ["a", "b"]
    new: list[Any] = ["c"]
    view = Conversation(old, new)
    old.extend(new)
    new.append("d")
    assert list(view) == ["a", "b", "c"]
    assert list(reversed(view)) == ["c", "b", "a"]
    assert (view[-1], view[0], view[1:], len(view)) == ("c", "a", ["b", "c"], 3)
    with pytest.raises(IndexError):
        view[3]
