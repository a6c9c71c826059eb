"""Content is neutral: what any agent can say passes, native objects and hidden faults do not."""

import math
from typing import Any

import pytest

from nerve.protocol.content import (
    AudioPart,
    ImagePart,
    Message,
    Role,
    StructuredPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    VideoPart,
    as_content,
)
from nerve.protocol.errors import NerveError
from nerve.protocol.wire import parse_wire

PARTS: list[Any] = [
    TextPart(text="größer 🌌"),
    StructuredPart(value={"a": [1, None, 2.5]}, name="reading"),
    ImagePart(media_type="image/png", url="https://example.org/a.png"),
    AudioPart(media_type="audio/wav", base64="UklGRg=="),
    VideoPart(media_type="video/mp4", url="s3://bucket/key"),
    ToolCallPart(call_id="c1", tool="forecast", arguments={"city": "Oslo"}),
    ToolResultPart(
        call_id="c1",
        tool="forecast",
        state="SUCCEEDED",
        effect="completed",
        content=(TextPart(text="sunny"),),
    ),
]


@pytest.mark.capability("A7.1")
@pytest.mark.parametrize("part", PARTS, ids=[part.type for part in PARTS])
def test_every_part_survives_the_wire(part: Any) -> None:
    message = Message(role=Role.ASSISTANT, parts=(part, TextPart(text=".")))
    assert parse_wire(Message, message.to_json(), "message") == message


def test_content_is_given_as_text_parts_message_or_json() -> None:
    said = Message(role=Role.USER, parts=(TextPart(text="hello"),))
    forms: list[Any] = ["hello", ["hello"], TextPart(text="hello"), said, said.to_json()]
    forms += [{"type": "text", "text": "hello"}, [{"type": "text", "text": "hello"}], ("hello",)]
    assert [as_content(form) for form in forms] == [said] * len(forms)


def test_the_text_of_a_message_is_its_text_parts_or_its_structured_values() -> None:
    parts = (TextPart(text="a"), StructuredPart(value=1), TextPart(text="b"))
    assert Message(role=Role.USER, parts=parts).text == "ab"
    assert as_content(StructuredPart(value={"b": 1, "a": 2})).text == '{"a":2,"b":1}'


class Native:
    """An object of some framework."""


@pytest.mark.capability("A7.2")
@pytest.mark.parametrize(
    "content",
    [
        Native(),
        [Native()],
        b"bytes",
        3,
        None,
        {},
        [],
        {"type": "thinking", "text": "secret"},
        {"type": "text", "text": "a", "extra": 1},
        {"type": "text"},
        {"role": "wizard", "parts": []},
        {"type": "structured", "value": Native()},
        {"type": "image", "media_type": "image/png"},
        {"type": "image", "media_type": "image/png", "url": "https://a", "base64": "AA=="},
        {"type": "image", "media_type": "image/png", "base64": "not base64"},
        {"type": "image", "media_type": "image/png", "url": "no url"},
        {"type": "image", "media_type": "png", "url": "https://a"},
        {"type": "image", "media_type": "image/png", "url": "https://" + "a" * 9000},
    ],
    ids=range(18),
)
def test_what_is_no_content_is_refused_with_its_place(content: Any) -> None:
    with pytest.raises(NerveError) as caught:
        as_content(content)
    assert caught.value.where.startswith("content")
    assert caught.value.next_step


@pytest.mark.report("U104", "U106", "U107")
@pytest.mark.parametrize(
    "content",
    [
        "a\x00",
        "\ud800",
        TextPart.model_construct(text="\ud800"),
        StructuredPart.model_construct(value={"a": math.nan}),
        StructuredPart(value=2**53),
        StructuredPart(value="\x00"),
        Message.model_construct(role=Role.USER, parts=(TextPart.model_construct(text="\x00"),)),
    ],
    ids=range(7),
)
def test_text_and_numbers_that_cannot_be_stored_are_refused_at_the_door(content: Any) -> None:
    with pytest.raises(NerveError) as caught:
        as_content(content, "prompt")
    assert caught.value.where.startswith("prompt")


def test_media_carried_inside_gives_its_bytes() -> None:
    assert AudioPart(media_type="audio/wav", base64="UklGRg==").data() == b"RIFF"
    assert VideoPart(media_type="video/mp4", url="s3://b/k").data() is None
