"""A RabbitMQ server for tests, and a virtual host of its own for each test."""

import base64
import secrets
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit, urlunsplit

from support.services import Service

AMQP = Service(name="amqp", variable="NERVE_TEST_AMQP_URL")
MANAGEMENT = Service(name="amqp-management", variable="NERVE_TEST_AMQP_MANAGEMENT_URL")


def manage(method: str, path: str, body: bytes = b"{}") -> None:
    """One call of the management API."""
    management = MANAGEMENT.address()
    parts = urlsplit(management)
    token = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    request = urllib.request.Request(
        f"http://{parts.hostname}:{parts.port}/api/{path}",
        method=method,
        data=body,
        headers={"authorization": f"Basic {token}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


@asynccontextmanager
async def virtual_host() -> AsyncGenerator[str]:
    """The URL of a fresh virtual host, which is removed afterwards with all its queues."""
    parts = urlsplit(AMQP.address())
    name = f"test-{secrets.token_hex(6)}"
    manage("PUT", f"vhosts/{name}")
    rights = b'{"configure": ".*", "write": ".*", "read": ".*"}'
    manage("PUT", f"permissions/{name}/{quote(parts.username or 'guest')}", rights)
    try:
        yield urlunsplit((parts.scheme, parts.netloc, f"/{name}", "", ""))
    finally:
        manage("DELETE", f"vhosts/{name}")
