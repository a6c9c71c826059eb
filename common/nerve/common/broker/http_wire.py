"""HTTP/1.1 as hub and client speak it: a head of lines, a body of a known length, and frames inside of it."""

import asyncio
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast, final
from urllib.parse import parse_qsl, urlsplit

HEAD_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
FRAMES: Final = "application/vnd.nerve.frames"
JSON: Final = "application/json"
_REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found"}
_REASONS_MORE: Final = {413: "Content Too Large", 500: "Internal Server Error", 503: "Unavailable"}


class BadMessage(Exception):
    """Bytes that are not what was agreed on; says what, never which."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = field(default=b"", repr=False)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = field(default=b"", repr=False)


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None where the client hung up between two."""
    head = await _head(reader)
    if head is None:
        return None
    words = head[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadMessage("a request line that is none")
    parts = urlsplit(words[1])
    headers = _headers(head[1:])
    return Request(
        method=words[0],
        path=parts.path,
        query=dict(parse_qsl(parts.query)),
        headers=headers,
        body=await _body(reader, headers),
    )


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """The reply to a request. Raises BadMessage, and ConnectionResetError where it never came."""
    head = await _head(reader)
    if head is None:
        raise ConnectionResetError("the other side hung up before it answered")
    words = head[0].split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise BadMessage("a status line that is none")
    headers = _headers(head[1:])
    return Reply(status=int(words[1]), headers=headers, body=await _body(reader, headers))


async def _head(reader: asyncio.StreamReader) -> list[str] | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise ConnectionResetError("the connection ended inside a message") from None
    except asyncio.LimitOverrunError:
        raise BadMessage(f"a head of more than {HEAD_BYTES_MAX} bytes") from None
    return raw.decode("latin-1").split("\r\n")[:-2]


def _headers(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or name != name.strip() or not name or name in found:
            raise BadMessage("a header that is none, or stands twice")
        found[name] = value.strip()
    return found


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise BadMessage("a body without a length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise BadMessage("a length that is no number")
    if int(length) > BODY_BYTES_MAX:
        raise BadMessage(f"a body of more than {BODY_BYTES_MAX} bytes")
    try:
        return await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the connection ended inside a message") from None


def request_bytes(
    method: str, target: str, host: str, headers: Mapping[str, str], body: bytes
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def reply_bytes(status: int, body: bytes, kind: str = JSON) -> bytes:
    reason = _REASONS.get(status) or _REASONS_MORE.get(status, "-")
    head = (
        f"HTTP/1.1 {status} {reason}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode("latin-1") + body


def framed(parts: Iterable[bytes]) -> bytes:
    """Any number of byte strings as one, each behind its length."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def unframed(body: bytes) -> list[bytes]:
    """Raises BadMessage."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        if at + 4 > len(body):
            raise BadMessage("a frame that is cut")
        (length,) = struct.unpack_from(">I", body, at)
        at += 4
        if at + length > len(body):
            raise BadMessage("a frame that is cut")
        parts.append(body[at : at + length])
        at += length
    return parts


def json_bytes(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def json_object(body: bytes) -> dict[str, Any]:
    """One JSON object. Raises BadMessage."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise BadMessage("a body that is no JSON") from None
    if not isinstance(value, dict):
        raise BadMessage("a body that is no object")
    return cast("dict[str, Any]", value)


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """A member that must be text. Raises BadMessage."""
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 512:
        raise BadMessage(f"{name} is no text")
    return value


def number_of(fields: Mapping[str, Any], name: str) -> int:
    """A member that must be a whole number from 0 on. Raises BadMessage."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadMessage(f"{name} is no number")
    return value


def texts_of(fields: Mapping[str, Any], name: str) -> list[str]:
    """A member that must be a list of texts. Raises BadMessage."""
    value = fields.get(name)
    if not isinstance(value, list) or not all(
        isinstance(each, str) for each in cast("list[object]", value)
    ):
        raise BadMessage(f"{name} is no list of texts")
    return cast("list[str]", value)
