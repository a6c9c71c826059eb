"""An S3-compatible server for tests: a bucket of its own for each test, behind a gate that can shut."""

import asyncio
import atexit
import os
import secrets
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from nerve.common.objects.s3 import S3Settings
from nerve.protocol.objects import ObjectRef
from support.servers import containers
from support.servers.containers import ContainerServer, provider
from support.servers.native import NativeServer
from support.services import Service

server = NativeServer("s3", programs=["java", "keytool"], shared=True)
atexit.register(server.drop)

VARIABLE = "NERVE_TEST_S3_URL"
S3 = Service(
    name="s3",
    variable=VARIABLE,
    native=[lambda: server.address(VARIABLE)],
    container=[provider(ContainerServer(containers.S3), VARIABLE)],
)


def _client(settings: S3Settings) -> Any:  # boto3 makes its clients at run time
    sdk: Any = import_module("boto3")
    return sdk.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.key,
        aws_secret_access_key=settings.secret,
    )


def bucket() -> S3Settings:
    """A fresh bucket on the server that tests use."""
    settings = S3Settings(
        bucket=f"nerve-{secrets.token_hex(6)}",
        prefix="objects",
        endpoint=S3.address(),
        key=os.environ.get("NERVE_TEST_S3_ACCESS_KEY", "nerve"),
        secret=os.environ.get("NERVE_TEST_S3_SECRET_KEY", "nerve-secret"),
    )
    _client(settings).create_bucket(Bucket=settings.bucket)
    return settings


def overwrite(settings: S3Settings, ref: ObjectRef, body: bytes) -> None:
    """Put other bytes under the name of an object, as no client of ours does."""
    name = f"{settings.prefix}/{ref.scope}/{ref.digest.removeprefix('sha256:')}"
    _client(settings).put_object(Bucket=settings.bucket, Key=name, Body=body)


class Gate:
    """A TCP relay to the server, so that it can be out of reach without being stopped."""

    def __init__(self, settings: S3Settings) -> None:
        parts = urlsplit(settings.endpoint or "")
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None] | None] = set()
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut_off(self) -> None:
        """Refuse new connections and end those there are."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut_off()
        relays = [task for task in self._relays if task is not None]
        if relays:
            await asyncio.wait(relays, timeout=5)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        both = {writer, there_writer}
        self._open |= both
        self._relays.add(asyncio.current_task())
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        self._open -= both
        for each in both:
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError, RuntimeError):
        writer.write_eof()
