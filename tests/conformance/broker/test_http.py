"""Over HTTP: only a receipt is a confirm, what says nothing is asked again, and nobody enters without the token."""

import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nerve.common.broker.http_address import HttpAddress, http_at
from nerve.protocol.errors import BadInput, BrokerUnavailable
from support.hub import TOKEN, between, hub
from support.waiting import soon

TOPIC = "nerve.test.hands.commands"

BROKEN: dict[str, Callable[[bytes], bytes | None]] = {
    "empty object": lambda reply: _replied(b"{}"),
    "no JSON": lambda reply: _replied(b"<html>fine</html>"),
    "another id": lambda reply: _replied(b'{"request":"x","bodies":1}'),
    "another number": lambda reply: reply.replace(b'"bodies":1', b'"bodies":2'),
    "an error of nobody": lambda reply: _replied(b"bad gateway", b"502 Bad Gateway"),
    "a refusal without a code": lambda reply: _replied(b'{"error":"no"}', b"400 Bad Request"),
    "no HTTP": lambda reply: b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "cut": lambda reply: None,
}


def _replied(body: bytes, status: bytes = b"200 OK") -> bytes:
    length = str(len(body)).encode()
    kind = b"content-type: application/json"
    return (
        b"HTTP/1.1 "
        + status
        + b"\r\n"
        + kind
        + b"\r\ncontent-length: "
        + length
        + b"\r\n\r\n"
        + body
    )


@pytest.mark.capability("E5.2")
@pytest.mark.parametrize("how", BROKEN)
async def test_an_answer_that_says_nothing_is_cleared_up_under_the_same_id(
    tmp_path: Path, how: str
) -> None:
    left = 3

    def spoil(request: bytes, reply: bytes) -> bytes | None:
        nonlocal left
        left -= 1
        return BROKEN[how](reply) if left >= 0 else reply

    async with hub(tmp_path) as found, between(found, spoil) as proxy:
        client = found.client(port=proxy.port)
        await soon(client.publish(TOPIC, [b'{"n":1}']))
        await client.close()
        ids = [
            line
            for request in proxy.requests
            for line in request.split(b"\r\n")
            if line.startswith(b"nerve-request")
        ]
        assert len(ids) == 4 and len({*ids}) == 1
        assert dict(await found.under.waiting([TOPIC])) == {TOPIC: 1}


@pytest.mark.capability("E5.2")
async def test_a_poll_whose_answer_cannot_be_read_loses_nothing(tmp_path: Path) -> None:
    left = 2

    def spoil(request: bytes, reply: bytes) -> bytes | None:
        nonlocal left
        if b"/v1/receive" not in request:
            return reply
        left -= 1
        return _replied(b"{}") if left >= 0 else reply

    async with hub(tmp_path) as found, between(found, spoil) as proxy:
        client = found.client(port=proxy.port)
        await soon(client.publish(TOPIC, [b"a", b"b"]))
        consumer = client.consume(TOPIC, "g", credit=lambda: 10)
        came: list[bytes] = []
        while len(came) < 2:
            try:
                deliveries = await soon(consumer.receive())
            except BrokerUnavailable:
                continue
            came += [each.body for each in deliveries]
            consumer.ack(deliveries)
        assert sorted(came) == [b"a", b"b"]
        await soon(client.close())
        assert dict(await found.under.waiting([TOPIC])) == {TOPIC: 0}


async def test_a_wrong_token_is_refused_by_name_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = "another-token-entirely"
    async with hub(tmp_path) as found:
        client = found.client(token=wrong)
        with pytest.raises(BrokerUnavailable, match="unauthorized") as caught:
            await soon(client.publish(TOPIC, [b"a"]))
        consumer = client.consume(TOPIC, "g", credit=lambda: 10)
        with pytest.raises(BrokerUnavailable, match="unauthorized"):
            await soon(consumer.receive())
        assert [name in client.troubles()[0] for name in ("refused", wrong, TOKEN)] == [
            True,
            False,
            False,
        ]
        await client.close()
        assert dict(await found.under.waiting([TOPIC])) == {TOPIC: 0}
    for text in (str(caught.value), caplog.text):
        assert wrong not in text and TOKEN not in text


async def test_over_tls_the_authority_decides(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of this test")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"]
        + ["/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key)]
        + ["-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=30,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with hub(tmp_path, tls=context, ca_file=str(certificate)) as found:
        client = found.client()
        await soon(client.publish(TOPIC, [b"a"]))
        await client.close()
        found.ca_file = None
        stranger = found.client()
        with pytest.raises(BrokerUnavailable, match="no receipt"):
            await soon(stranger.publish(TOPIC, [b"b"]))
        await stranger.close()
        assert dict(await found.under.waiting([TOPIC])) == {TOPIC: 1}


GIVEN = {"NERVE_HTTP_TOKEN": TOKEN}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.test:8080", "could be read on its way"),
        ("https://user:secret-word@example.test", "holds no secret"),
        ("https://example.test/path", r"http\(s\)://host:port"),
        ("https://example.test/?what=1", r"http\(s\)://host:port"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        http_at(url, GIVEN, publish_seconds=1)
    assert "secret-word" not in str(caught.value)


def test_a_token_is_needed_and_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    found = http_at("http://127.0.0.1:1", {"NERVE_HTTP_TOKEN_FILE": str(file)}, publish_seconds=1)
    assert found == HttpAddress(host="127.0.0.1", port=1, tls=False, token=TOKEN, publish_seconds=1)
    assert TOKEN not in repr(found)
    for given in ({}, {"NERVE_HTTP_TOKEN": "short"}):
        with pytest.raises(BadInput, match="a hub needs a token"):
            http_at("http://127.0.0.1:1", given, publish_seconds=1)
