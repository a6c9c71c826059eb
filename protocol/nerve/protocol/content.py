"""What any agent can say: text, structured data and media, as public Messages."""

import base64
import binascii
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, TypeVar, cast

from pydantic import Discriminator, Field, JsonValue, StringConstraints, model_validator

from nerve.protocol.canonical import canonical_bytes, check_text, check_value
from nerve.protocol.errors import BadInput
from nerve.protocol.identity import IdField, ToolField
from nerve.protocol.wire import Wire, parse_wire

W = TypeVar("W", bound=Wire)

URL_MAX: Final = 8192
MediaType = Annotated[str, StringConstraints(pattern=r"^[a-z]+/[A-Za-z0-9.+*-]{1,100}$")]
URL = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*:[!-~]+$", max_length=URL_MAX)]


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SYSTEM = "system"


class TextPart(Wire):
    type: Literal["text"] = "text"
    text: str

    @model_validator(mode="after")
    def _storable(self) -> Self:
        check_text(self.text, "/text")
        return self


class StructuredPart(Wire):
    """A JSON value, as data and not as text about it."""

    type: Literal["structured"] = "structured"
    value: JsonValue
    name: IdField | None = None


class _Media(Wire):
    media_type: MediaType
    url: URL | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.url is None) == (self.base64 is None):
            raise ValueError("give either url or base64")
        if self.base64 is not None:
            _decoded(self.base64)
        return self

    def data(self) -> bytes | None:
        """The bytes, where the part carries them itself."""
        return None if self.base64 is None else _decoded(self.base64)


class ImagePart(_Media):
    type: Literal["image"] = "image"


class AudioPart(_Media):
    type: Literal["audio"] = "audio"


class VideoPart(_Media):
    type: Literal["video"] = "video"


class ToolCallPart(Wire):
    """A tool the assistant asked for, in the public history."""

    type: Literal["tool_call"] = "tool_call"
    call_id: IdField
    tool: ToolField
    arguments: dict[str, JsonValue]


class ToolResultPart(Wire):
    """What came of a call, in the public history."""

    type: Literal["tool_result"] = "tool_result"
    call_id: IdField
    tool: ToolField
    state: str
    effect: str
    content: tuple["Part", ...] = ()


Part = Annotated[
    TextPart | StructuredPart | ImagePart | AudioPart | VideoPart | ToolCallPart | ToolResultPart,
    Discriminator("type"),
]


class Message(Wire):
    """One thing said by one role; private reasoning has no place in it."""

    role: Role
    parts: Annotated[tuple[Part, ...], Field(max_length=4096)]

    @property
    def text(self) -> str:
        """All text of the message; structured parts only where there is no text."""
        return text_of(self.parts)

    @classmethod
    def user(cls, content: "Content") -> "Message":
        return as_content(content)

    @classmethod
    def assistant(cls, text: str) -> "Message":
        return cls(role=Role.ASSISTANT, parts=(TextPart(text=text),))


Content = str | Message | Part | Sequence["str | Part | dict[str, Any]"] | dict[str, Any]


def text_of(parts: Sequence[Part]) -> str:
    """The text parts joined; without any, the structured values as canonical JSON."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if texts:
        return "".join(texts)
    values = [part.value for part in parts if isinstance(part, StructuredPart)]
    return "\n".join(canonical_bytes(value).decode() for value in values)


def as_content(content: Content, where: str = "content") -> Message:
    """A user Message from text, a part, parts, a Message, or the JSON form of one of them."""
    if isinstance(content, Message):
        return _storable(content, where)
    if isinstance(content, dict) and "role" in content:
        return _storable(parse_wire(Message, check_value(content, where), where), where)
    parts = content if isinstance(content, (list, tuple)) else [content]
    if not parts:
        raise BadInput("the content is empty", where=where, next_step="Give text or parts")
    made = tuple(as_part(part, f"{where}/{index}") for index, part in enumerate(parts))
    return Message(role=Role.USER, parts=made)


def as_part(value: object, where: str = "content") -> Part:
    """One part; native objects of a framework are refused here."""
    native = type(value).__qualname__
    if isinstance(value, str):
        return TextPart(text=check_text(value, where))
    if isinstance(value, (TextPart, ImagePart, AudioPart, VideoPart, StructuredPart)):
        return _storable(value, where)
    if isinstance(value, (ToolCallPart, ToolResultPart)):
        return _storable(value, where)
    if isinstance(value, dict) and "type" in value:
        return _parsed_part(check_value(cast("object", value), where), where)
    raise BadInput(
        f"an object of type {native} is not content",
        where=where,
        next_step="Give text, a Message, or parts: text, structured, image, audio or video",
    )


class _Holder(Wire):
    part: Part


def _parsed_part(value: JsonValue, where: str) -> Part:
    return parse_wire(_Holder, {"part": value}, where).part


def _storable(value: W, where: str) -> W:
    check_value(value.to_json(), where)
    return value


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("base64 is damaged") from None
