"""`rocketmq://host:8081?tls=true&ca_file=...`: how to reach the proxies, and the keys that stand elsewhere."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from nerve.common.broker.rocketmq_link import RocketSettings
from nerve.protocol.errors import BadInput

ACCESS_KEY: Final = "NERVE_ROCKETMQ_ACCESS_KEY"
SECRET_KEY: Final = "NERVE_ROCKETMQ_SECRET_KEY"
PORT: Final = 8081
_BOOLEANS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}
_OPTIONS: Final = frozenset({"tls", "ca_file", "namespace", "prefix"})


def rocketmq_at(
    url: str, environment: Mapping[str, str], *, publish_seconds: float
) -> RocketSettings:
    """Raises BadInput where the address cannot be meant. Keys in the address go before the environment's."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(given) - _OPTIONS)
    if unknown:
        raise _bad(f"the address of RocketMQ knows no option {unknown[0][:40]!r}")
    if not parts.hostname or parts.path.strip("/"):
        raise _bad("the address of RocketMQ names a host and nothing below it")
    access, secret = _keys(parts.username, parts.password, environment)
    return RocketSettings(
        endpoint=_endpoint(url),
        access_key=access,
        secret_key=secret,
        tls=_tls(given),
        publish_seconds=publish_seconds,
        ca_file=given.get("ca_file"),
        namespace=given.get("namespace", ""),
        prefix=given.get("prefix", ""),
    )


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    try:
        port = parts.port or PORT
    except ValueError:
        raise _bad("the port of RocketMQ is no number") from None
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(given: Mapping[str, str]) -> bool:
    wanted = _BOOLEANS.get(given.get("tls", "false" if "ca_file" not in given else "true"))
    if wanted is None:
        raise _bad("the option tls is true or false")
    if not wanted and "ca_file" in given:
        raise _bad("a ca_file without tls checks nothing")
    return wanted


def _keys(
    user: str | None, password: str | None, environment: Mapping[str, str]
) -> tuple[str | None, str | None]:
    access = unquote(user) if user else environment.get(ACCESS_KEY)
    secret = unquote(password) if password else environment.get(SECRET_KEY)
    if bool(access) != bool(secret):
        missing = SECRET_KEY if access else ACCESS_KEY
        raise _bad(f"one of the two keys of RocketMQ is missing: set {missing}")
    return access or None, secret or None


def _bad(message: str) -> BadInput:
    return BadInput(
        message,
        where="--broker",
        next_step="write rocketmq://host:8081, with ?tls=true&ca_file=FILE where it speaks TLS, and"
        f" the keys in {ACCESS_KEY} and {SECRET_KEY}",
    )
