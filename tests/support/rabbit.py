"""Virtual hosts of a RabbitMQ server, one for each test, and the calls of its management API."""

import asyncio
import base64
import json
import secrets
import urllib.request
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from support.servers.rabbitmq import AMQP, MANAGEMENT

ALL = ".*"


def manage(method: str, path: str, body: bytes = b"{}", *, at: str | None = None) -> Any:
    """What the management API answers, of the server of the run or the one `at` an address."""
    parts = urlsplit(at or MANAGEMENT.address())
    token = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    request = urllib.request.Request(
        f"http://{parts.hostname}:{parts.port}/api/{path}",
        method=method,
        data=None if method == "GET" else body,
        headers={"authorization": f"Basic {token}", "content-type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def permit(host: str, user: str, rights: str = ALL, *, at: str | None = None) -> None:
    """What `user` may configure, write and read in a virtual host."""
    body = json.dumps({"configure": rights, "write": rights, "read": rights}).encode()
    manage("PUT", f"permissions/{host}/{quote(user)}", body, at=at)


def channels(host: str, *, at: str | None = None) -> list[str]:
    """Of each channel of a virtual host the name that its connection gave itself, as counted last."""
    connections = manage("GET", f"vhosts/{host}/connections", at=at)
    names = {each["name"]: each["client_properties"] for each in connections}
    found: list[str] = []
    for each in manage("GET", f"vhosts/{host}/channels", at=at):
        # What is not known yet is an empty list there.
        named = names.get(dict(each.get("connection_details") or {}).get("name"))
        if named is not None:
            found.append(named["connection_name"])
    return sorted(found)


def below(url: str, host: str) -> str:
    """The address of a virtual host on the server of `url`."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, f"/{host}", parts.query, ""))


@contextmanager
def a_virtual_host(*, url: str | None = None, at: str | None = None) -> Generator[str]:
    """The URL of a fresh virtual host, which is removed afterwards with all its queues."""
    url = url or AMQP.address()
    name = f"test-{secrets.token_hex(6)}"
    manage("PUT", f"vhosts/{name}", at=at)
    permit(name, urlsplit(url).username or "guest", at=at)
    try:
        yield below(url, name)
    finally:
        manage("DELETE", f"vhosts/{name}", at=at)


@asynccontextmanager
async def virtual_host() -> AsyncGenerator[str]:
    """As `a_virtual_host`; starting a server takes some seconds, which hold up no loop."""
    made = a_virtual_host()
    url = await asyncio.to_thread(made.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)
