"""Servers in containers, by testcontainers: started once a process, each with a label, a deadline and fixed
ports, so that one that is killed and started again is where its clients look for it.

An image is the one that a variable names, else the stand-in of `make images` where it is here, else the
official one, which testcontainers pulls.
"""

import atexit
import os
import random
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, final
from urllib.request import Request, urlopen

from support import engine
from support.servers import rocketmq_admin
from support.services import Unavailable

LABEL = "nerve.test.owner"
READY_SECONDS = 300.0
USER, SECRET = "nerve", "nerve-secret"
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one kind of server is run; `addresses` and `ready` are given the host's port of each port."""

    service: str
    variable: str
    stand_in: str
    official: str
    ports: Sequence[int]
    addresses: Callable[[Mapping[int, int]], Mapping[str, str]]
    ready: Callable[[Mapping[int, int]], bool]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str = ""
    told: Mapping[int, str] = field(default_factory=dict[int, str])
    """Ports that the server tells its clients, each with the variable that sets it: such a port has the
    host's number inside of the container too."""

    @property
    def image(self) -> str:
        given = os.environ.get(self.variable)
        if given:
            return given
        here = engine.docker("image", "ls", "-q", self.stand_in).strip()
        return self.stand_in if here else self.official


def _answers(port: int, say: bytes) -> bool:
    """Whether something speaks there: a published port is open before its server is."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as peer:
            peer.sendall(say)
            peer.settimeout(2)
            return peer.recv(1) != b""
    except OSError:
        return False


def _http(url: str) -> bool:
    try:
        with urlopen(Request(url), timeout=2) as answer:
            return int(answer.status) < 500
    except OSError as error:
        return getattr(error, "code", 500) < 500


def _rocketmq_ready(at: Mapping[int, int]) -> bool:
    """The name server knows the broker, and the proxy's port is open."""
    try:
        socket.create_connection(("127.0.0.1", at[8081]), timeout=2).close()
        return bool(rocketmq_admin.masters(f"127.0.0.1:{at[9876]}"))
    except (OSError, struct.error, rocketmq_admin.Refused):
        return False


POSTGRES = Recipe(
    service="postgres",
    variable="NERVE_POSTGRES_IMAGE",
    stand_in="nerve-base/postgres",
    official="postgres:17",
    ports=[5432],
    environment={"POSTGRES_USER": USER, "POSTGRES_PASSWORD": USER, "POSTGRES_DB": USER},
    command="-c max_connections=300",
    addresses=lambda at: {
        "NERVE_TEST_POSTGRES_URL": f"postgresql://{USER}:{USER}@127.0.0.1:{at[5432]}/{USER}"
    },
    # SSLRequest, which every PostgreSQL answers with one byte.
    ready=lambda at: _answers(at[5432], b"\x00\x00\x00\x08\x04\xd2\x16\x2f"),
)
RABBITMQ = Recipe(
    service="rabbitmq",
    variable="NERVE_RABBITMQ_IMAGE",
    stand_in="nerve-base/rabbitmq",
    official="rabbitmq:4-management",
    ports=[5672, 15672],
    environment={"RABBITMQ_DEFAULT_USER": USER, "RABBITMQ_DEFAULT_PASS": SECRET},
    addresses=lambda at: {
        "NERVE_TEST_AMQP_URL": f"amqp://{USER}:{SECRET}@127.0.0.1:{at[5672]}/",
        "NERVE_TEST_AMQP_MANAGEMENT_URL": f"http://{USER}:{SECRET}@127.0.0.1:{at[15672]}",
    },
    # A handshake and not a line of a log: a started RabbitMQ may refuse connections for a while.
    ready=lambda at: _answers(at[5672], AMQP_HEADER) and _http(f"http://127.0.0.1:{at[15672]}/"),
)
S3 = Recipe(
    service="s3",
    variable="NERVE_S3_IMAGE",
    stand_in="nerve-base/s3proxy",
    official="andrewgaul/s3proxy:latest",
    ports=[9000],
    environment={"S3PROXY_IDENTITY": USER, "S3PROXY_CREDENTIAL": SECRET},
    addresses=lambda at: {
        "NERVE_TEST_S3_URL": f"http://127.0.0.1:{at[9000]}",
        "NERVE_TEST_S3_ACCESS_KEY": USER,
        "NERVE_TEST_S3_SECRET_KEY": SECRET,
    },
    ready=lambda at: _http(f"http://127.0.0.1:{at[9000]}/"),
)
ROCKETMQ = Recipe(
    service="rocketmq",
    variable="NERVE_ROCKETMQ_IMAGE",
    stand_in="nerve-base/rocketmq",
    official="nerve-base/rocketmq",
    ports=[8081, 9876, 10911],
    told={8081: "ROCKETMQ_PROXY_PORT", 10911: "ROCKETMQ_BROKER_PORT"},
    environment={"ROCKETMQ_ADDRESS": "127.0.0.1"},
    addresses=lambda at: {
        "NERVE_TEST_ROCKETMQ_ENDPOINT": f"127.0.0.1:{at[8081]}",
        "NERVE_TEST_ROCKETMQ_NAMESRV": f"127.0.0.1:{at[9876]}",
    },
    ready=_rocketmq_ready,
)

RECIPES = {each.service: each for each in (POSTGRES, RABBITMQ, S3, ROCKETMQ)}


@final
class ContainerServer:
    """One container of a recipe: `start` makes it or starts it again on the same data and ports."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.ready_seconds = 0.0
        self._container: Any = None
        self._ports: dict[int, int] = {}

    @property
    def id(self) -> str:
        """The engine's name of it, for fault tests that stop it from outside."""
        return str(self._container.get_wrapped_container().id)

    @property
    def addresses(self) -> Mapping[str, str]:
        return self.recipe.addresses(self._ports)

    def address(self, key: str) -> str:
        if self._container is None:
            self.start()
        if key not in self.addresses:
            raise Unavailable(f"the container of {self.recipe.service} has no {key}")
        return self.addresses[key]

    def start(self) -> None:
        """Raises Unavailable where there is no engine, no image, or no answer within the deadline."""
        began = time.monotonic()
        if self._container is None:
            self._container = self._made()
        else:
            engine.docker("start", self.id)
        await_ready(self.recipe, self._ports, self.id)
        self.ready_seconds = time.monotonic() - began

    def started(self) -> Mapping[str, str]:
        self.start()
        return self.addresses

    def stop(self) -> None:
        engine.docker("stop", "--time", "30", self.id)

    def kill(self) -> None:
        """SIGKILL to all of it; `start` brings it back."""
        engine.docker("kill", "--signal", "KILL", self.id)

    def drop(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.stop()

    def _made(self) -> Any:
        why = engine.lacking()
        if why:
            raise Unavailable(why)
        # Its reaper is one more image, which may hang or not be there: labels and `atexit` do its work.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        try:
            core: Any = import_module("testcontainers.core.container")
        except ImportError as error:
            raise Unavailable("testcontainers is not installed: pip install '.[dev]'") from error
        self._ports = dict(zip(self.recipe.ports, free_ports(len(self.recipe.ports)), strict=True))
        container = core.DockerContainer(self.recipe.image)
        container.with_kwargs(labels={LABEL: str(os.getpid())})
        for port, outside in self._ports.items():
            inside = outside if port in self.recipe.told else port
            container.ports[f"{inside}/tcp"] = ("127.0.0.1", outside)
        told = {name: str(self._ports[port]) for port, name in self.recipe.told.items()}
        for key, value in {**self.recipe.environment, **told}.items():
            container.with_env(key, value)
        if self.recipe.command:
            container.with_command(self.recipe.command)
        try:
            return container.start()
        except Exception as error:
            raise Unavailable(
                f"{self.recipe.image} does not start: {type(error).__name__}: {str(error)[:200]}"
            ) from error


def await_ready(recipe: Recipe, ports: Mapping[int, int], id: str) -> None:
    end = time.monotonic() + READY_SECONDS
    pause = threading.Event()
    while not recipe.ready(ports):
        if time.monotonic() > end:
            said = engine.docker("logs", "--tail", "20", id, check=False)
            raise Unavailable(f"{recipe.service} is not ready after {READY_SECONDS:g} s: {said}")
        pause.wait(0.2)


def free_ports(count: int) -> list[int]:
    """Different ones, below those that the kernel gives to outgoing connections: while a server is down
    one of these would take its port, or a client that tries again would reach itself. RocketMQ's broker
    opens neighbours of its own port too, so they lie apart."""
    found: list[int] = []
    with ExitStack() as probes:
        while len(found) < count:
            port = random.randrange(20_000, 32_000, 4)
            probe = probes.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found


def sweep() -> int:
    """Remove containers of runs whose process is gone; how many there were."""
    listed = engine.docker("ps", "-aq", "--filter", f"label={LABEL}").split()
    gone = [
        each
        for each in listed
        if not _lives(
            engine.docker("inspect", "-f", f'{{{{index .Config.Labels "{LABEL}"}}}}', each).strip()
        )
    ]
    for each in gone:
        subprocess.run(["docker", "rm", "-f", "-v", each], capture_output=True, check=False)
    return len(gone)


def _lives(pid: str) -> bool:
    return pid.isdecimal() and os.path.exists(f"/proc/{pid}")


def provider(server: ContainerServer, key: str) -> Callable[[], str]:
    """For `Service(container=[...])`: the container lives as long as this process."""

    def address() -> str:
        if server.recipe.service not in _registered:
            _registered.add(server.recipe.service)
            atexit.register(server.drop)
        return server.address(key)

    return address


_registered: set[str] = set()
