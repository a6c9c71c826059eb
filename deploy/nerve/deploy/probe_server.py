"""Answers HTTP on a port of this machine in threads of its own, so that a blocked event loop is seen."""

from socketserver import ThreadingMixIn
from threading import Thread
from typing import final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from nerve.deploy.probes import Application
from nerve.protocol.errors import Unavailable

ANSWER_SECONDS = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    """Quiet, and it waits for no client for ever."""

    timeout = ANSWER_SECONDS

    def log_message(self, format: str, *args: object) -> None: ...


@final
class ProbeServer:
    """Runs from the moment it is made until `stop`."""

    def __init__(self, server: WSGIServer) -> None:
        self._server = server
        self.port: int = server.server_port
        self._thread = Thread(target=server.serve_forever, name="nerve-probes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def serve(host: str, port: int, application: Application) -> ProbeServer:
    """Raises Unavailable where the port cannot be had."""
    try:
        server = make_server(host, port, application, _Server, _Handler)
    except OSError as error:
        raise Unavailable(
            f"metrics cannot be served at {host}:{port}: {error.strerror or error}",
            where="--metrics",
            next_step="Name another port; 0 takes a free one",
        ) from None
    return ProbeServer(server)
