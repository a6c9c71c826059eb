"""`amqps://user:password@host/vhost?ca_file=...`: the address of RabbitMQ, and what it says beside the place."""

from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from nerve.protocol.errors import BadInput

PORTS: Final = {"amqp": 5672, "amqps": 5671}
_BOOLEANS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}
_OPTIONS: Final = frozenset({"ca_file", "create", "heartbeat", "management"})
_HEARTBEAT: Final = range(1, 601)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitSettings:
    """How to reach a server. `create`: hosts make the queues that are missing, else they only look."""

    url: str = field(repr=False)
    """Without our options."""
    create: bool = False
    publish_seconds: float = 10.0
    connect_seconds: float = 10.0
    heartbeat_seconds: int = 10
    watch_seconds: float = 10.0
    hold_seconds: float = 2.0
    ca_file: str | None = None
    management: str | None = field(default=None, repr=False)
    """Where its management plugin answers, with credentials; only `provision` and `doctor` ask it."""

    @property
    def shown(self) -> str:
        """The address without its secrets."""
        parts = urlsplit(self.url)
        port = parts.port or PORTS[parts.scheme]
        return f"{parts.scheme}://{parts.hostname}:{port}{parts.path}"

    @property
    def user(self) -> str:
        return unquote(urlsplit(self.url).username or "guest")

    @property
    def virtual_host(self) -> str:
        return unquote(urlsplit(self.url).path[1:]) or "/"


def rabbitmq_at(url: str, *, publish_seconds: float) -> RabbitSettings:
    """Raises BadInput where the address cannot be meant."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(given) - _OPTIONS)
    if unknown:
        raise _bad(f"the address of RabbitMQ knows no option {unknown[0][:40]!r}")
    try:
        wrong = not parts.hostname or parts.port == 0
    except ValueError:
        wrong = True
    if wrong:
        raise _bad("the address of RabbitMQ names no host, or a port that is none")
    if "ca_file" in given and parts.scheme != "amqps":
        raise _bad("a ca_file without TLS checks nothing: the address must begin with amqps")
    create = _BOOLEANS.get(given.get("create", "false"))
    if create is None:
        raise _bad("the option create is true or false")
    return RabbitSettings(
        url=urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
        create=create,
        publish_seconds=publish_seconds,
        heartbeat_seconds=_heartbeat(given.get("heartbeat", "10")),
        ca_file=given.get("ca_file"),
        management=_management(url, given.get("management")),
    )


def _heartbeat(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) not in _HEARTBEAT:
        raise _bad("the option heartbeat is a number of seconds from 1 to 600")
    return int(text)


def _management(url: str, given: str | None) -> str | None:
    """A port of the same host or a whole address; the credentials are those of the broker's address."""
    if given is None:
        return None
    parts = urlsplit(url)
    if given.isascii() and given.isdigit():
        scheme = "https" if parts.scheme == "amqps" else "http"
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        given = f"{scheme}://{host}:{given}"
    there = urlsplit(given)
    if there.scheme not in ("http", "https") or not there.hostname:
        raise _bad("the option management is a port, or http://host:15672")
    if there.username:
        return given
    credentials = parts.netloc.rpartition("@")[0]
    netloc = f"{credentials}@{there.netloc}" if credentials else there.netloc
    return urlunsplit((there.scheme, netloc, there.path, "", ""))


def _bad(message: str) -> BadInput:
    return BadInput(
        message,
        where="--broker",
        next_step="write amqp://user@host/vhost, or amqps://user@host/vhost?ca_file=FILE where a"
        " private authority signed its certificate; secrets belong in NERVE_BROKER",
    )
