"""`https://host:port/?ca_file=...`: where a hub answers, and with which token it is asked."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final
from urllib.parse import parse_qsl, urlsplit

from nerve.common.broker.authorities import trusting
from nerve.common.logs import register_secret
from nerve.protocol.errors import BadInput

TOKEN: Final = "NERVE_HTTP_TOKEN"
TOKEN_FILE: Final = "NERVE_HTTP_TOKEN_FILE"
TOKEN_CHARACTERS_MIN: Final = 16
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_OPTIONS: Final = frozenset({"ca_file", "plain"})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """How to reach a hub."""

    host: str
    port: int
    tls: bool
    token: str = field(repr=False)
    ca_file: str | None = None
    publish_seconds: float = 10.0

    @property
    def shown(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def context(self) -> ssl.SSLContext | None:
        """Whose certificates are believed. Raises BadInput."""
        return trusting(self.ca_file) if self.tls else None


def http_at(url: str, environment: Mapping[str, str], *, publish_seconds: float) -> HttpAddress:
    """Raises BadInput where the address cannot be meant, or the token would go in the clear."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        port = 0
    if not parts.hostname or not port or parts.path.strip("/") or set(options) - _OPTIONS:
        raise _bad("the address of a hub is http(s)://host:port with ca_file or plain as options")
    if parts.username or parts.password:
        raise _bad("the address of a hub holds no secret")
    tls = parts.scheme == "https"
    if not tls and parts.hostname not in _LOOPBACK and options.get("plain") != "1":
        raise _bad("over http the token could be read on its way to another machine")
    return HttpAddress(
        host=parts.hostname,
        port=port,
        tls=tls,
        token=token_in(environment),
        ca_file=options.get("ca_file"),
        publish_seconds=publish_seconds,
    )


def token_in(environment: Mapping[str, str]) -> str:
    """The token that hub and clients share. Raises BadInput where there is none, or a short one."""
    token = environment.get(TOKEN, "")
    file = environment.get(TOKEN_FILE)
    if not token and file:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadInput(
                f"{TOKEN_FILE}={file}: {error.strerror or error}", where=TOKEN_FILE
            ) from None
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable():
        raise BadInput(
            f"a hub needs a token of at least {TOKEN_CHARACTERS_MIN} printable characters",
            where=TOKEN,
            next_step=f"put a random one into a file, the same for all, and name it in {TOKEN_FILE}",
        )
    register_secret(token)
    return token


def _bad(what: str) -> BadInput:
    return BadInput(
        what,
        where="--broker",
        next_step="write https://host:port/?ca_file=...; on one machine http://127.0.0.1:port will"
        " do; where the network itself is trusted, add ?plain=1",
    )
