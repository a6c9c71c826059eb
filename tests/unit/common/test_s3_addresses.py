"""How a key becomes a request: path and signature, as Alibaba OSS and others take them, without a server."""

import asyncio
import socket
from typing import Any

import pytest

from nerve.common.objects.s3 import S3Objects, S3Settings

OSS = (
    "s3://tasks/prod?endpoint=http://s3.oss-cn-hangzhou.aliyuncs.com:{port}"
    "&region=oss-cn-hangzhou&path_style=false&checksums=when_required"
)


@pytest.mark.capability("G3.1")
async def test_oss_is_asked_by_host_name_under_its_region_and_without_trailers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("boto3")
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heads.append(head)
        if "100-continue" in head:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(4)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    real = socket.getaddrinfo
    asked: list[str] = []

    def here(host: str, *rest: Any, **more: Any) -> Any:
        asked.append(host)
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", here)
    settings = S3Settings.parse(OSS.format(port=port), key="LTAI-id", secret="oss-secret")
    store = S3Objects(settings)
    await store.open()
    try:
        ref = await store.put("acme/s-1/x", b"body")
    finally:
        await store.close()
        server.close()
    [head] = heads
    name = ref.digest.removeprefix("sha256:")
    assert head.startswith(f"PUT /prod/acme/s-1/x/{name} HTTP/1.1\r\n")
    assert f"Host: tasks.s3.oss-cn-hangzhou.aliyuncs.com:{port}\r\n" in head
    assert set(asked) == {"tasks.s3.oss-cn-hangzhou.aliyuncs.com"}
    assert "Authorization: AWS4-HMAC-SHA256 Credential=LTAI-id/" in head
    assert "/oss-cn-hangzhou/s3/aws4_request" in head
    assert "trailer" not in head.lower() and "aws-chunked" not in head
    assert "If-None-Match: *\r\n" in head
    assert "oss-secret" not in head + repr(settings) + settings.shown


def test_a_key_has_the_prefix_of_its_address_once() -> None:
    given = S3Settings.parse("s3://bucket/a/b/?endpoint=http://h:9000&ca_file=/ca.pem")
    assert (given.prefix, given.endpoint, given.ca_file) == ("a/b", "http://h:9000", "/ca.pem")
