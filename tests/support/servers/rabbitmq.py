"""RabbitMQ servers for tests: one a run that all share, and others that a test may harm."""

import atexit
import os
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from support.servers import containers
from support.servers.containers import ContainerServer, provider
from support.servers.native import NativeServer
from support.services import Service

URL = "NERVE_TEST_AMQP_URL"
MANAGEMENT_URL = "NERVE_TEST_AMQP_MANAGEMENT_URL"
TLS_URL = "NERVE_TEST_AMQP_TLS_URL"
CA_FILE = "NERVE_TEST_AMQP_CA_FILE"
PROGRAMS = ("rabbitmq-server", "epmd")

server = NativeServer("rabbitmq", programs=PROGRAMS, shared=True)
atexit.register(server.drop)
_container = ContainerServer(containers.RABBITMQ)


def _service(variable: str) -> Service:
    return Service(
        name="rabbitmq",
        variable=variable,
        native=[lambda: server.address(variable)],
        container=[provider(_container, variable)],
    )


AMQP = _service(URL)
MANAGEMENT = _service(MANAGEMENT_URL)
AMQP_TLS = _service(TLS_URL)
AMQP_CA = _service(CA_FILE)


class Victim:
    """A server of one test: killed, frozen and given alarms."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._native = NativeServer("rabbitmq", programs=PROGRAMS, environment=environment)

    @property
    def url(self) -> str:
        return self._native.address(URL)

    @property
    def management(self) -> str:
        return self._native.address(MANAGEMENT_URL)

    def start(self) -> None:
        """Skips where none can be started."""
        started = Service(name="rabbitmq", variable="", native=[lambda: self._started()])
        started.address()

    def kill(self) -> None:
        self._native.kill()

    def drop(self) -> None:
        self._native.drop()

    @contextmanager
    def frozen(self) -> Generator[None]:
        """Every thread of the server stands still; its sockets stay open."""
        pid = int((self._native.directory / "rabbitmq.pid").read_text().split()[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def ctl(self, *arguments: str) -> str:
        """What an operator's `rabbitmqctl` says."""
        lines = (self._native.directory / "rabbitmq.env").read_text().splitlines()
        environment = dict(line.split("=", 1) for line in lines)
        called = subprocess.run(
            [_program(), *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert called.returncode == 0, called.stderr
        return called.stdout

    def _started(self) -> str:
        self._native.start()
        return self.url


@cache
def _program() -> str:
    """Not the one in the PATH where it is Debian's: that one switches user."""
    found = sorted(Path("/usr/lib/rabbitmq").glob("**/*bin/rabbitmqctl"))
    return str(found[-1]) if found else "rabbitmqctl"
