"""`nerve hub`: the broker of a directory for Brains and Hands that reach it by HTTP only."""

import os
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

from nerve.common import logs
from nerve.common.broker.http_address import token_in
from nerve.common.broker.http_hub import HttpHub
from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.metrics import parse_address
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.common.wakeups import Doorbell
from nerve.deploy.output import Console
from nerve.deploy.stop import Stop
from nerve.protocol.errors import BadInput, Unavailable

DONE = 0


async def run_hub(
    directory: Path,
    *,
    console: Console,
    settings: Settings,
    listen: str,
    certificate: Path | None,
    key: Path | None,
) -> int:
    """Serve until SIGTERM or Ctrl-C. Raises BadInput without a token."""
    logs.configure(level=settings.log_level, json_lines=settings.log_json or console.json_lines)
    host, port = _listening(listen)
    context = _context(certificate, key)
    with Stop.catching() as stop:
        async with AsyncExitStack() as stack:
            token = token_in(os.environ)
            broker = _broker(stack, directory, settings)
            await broker.open()
            stack.push_async_callback(broker.close)
            hub = HttpHub(broker, token)
            stack.push_async_callback(hub.close)
            try:
                host, port = await hub.open(host, port, tls=context)
            except OSError as error:
                raise Unavailable(
                    f"a hub cannot listen at {listen}: {error.strerror or error}",
                    where="--listen",
                    next_step="Name another address; port 0 takes a free one",
                ) from None
            url = f"{'http' if context is None else 'https'}://{host}:{port}"
            console.say(
                "ready", f"A hub answers at {url} (pid {os.getpid()}).", url=url, pid=os.getpid()
            )
            await stop.asked.wait()
    console.say("stopped", "Stopped; what was not handed over stays in the queue.")
    return DONE


def _broker(stack: AsyncExitStack, directory: Path, settings: Settings) -> SqliteBroker:
    place = StateDirectory.open(directory, create=True)
    bells = Doorbell.open(place.path)
    stack.callback(bells.close)
    return SqliteBroker(
        place.path,
        bells,
        publish_seconds=settings.publish_seconds,
        poll_seconds=settings.broker_poll_seconds,
        ack_seconds=settings.ack_seconds,
        sweep_seconds=settings.sweep_seconds,
    )


def _listening(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError:
        raise BadInput(
            f"{text[:80]!r} is no address to listen at",
            where="--listen",
            next_step="write HOST:PORT, for instance 0.0.0.0:8443",
        ) from None


def _context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if certificate is None:
            raise OSError("no certificate was named")
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise BadInput(
            f"the certificate cannot be used: {error.strerror or error}",
            where="--tls-cert",
            next_step="name a certificate chain and its key, both in PEM form",
        ) from None
    return context
