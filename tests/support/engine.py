"""A container engine for tests, with the images that they run; where there is none, the reason why."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.services import required

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose.yaml"
SERVICE = "containers"
HOW = 'eval "$(deploy/containers/engine start)" starts one, `make images` builds what it runs'


def docker(*arguments: str, seconds: float = 120, check: bool = True) -> str:
    """What the client printed; its errors fail the test."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
    if check and done.returncode:
        raise AssertionError(f"docker {' '.join(arguments[:4])}: {done.stderr[-2000:]}")
    return done.stdout if check else done.stdout + done.stderr


@cache
def lacking() -> str:
    """What is missing here to run containers; empty where nothing is."""
    try:
        found = subprocess.run(
            ["docker", "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return f"there is no docker client; {HOW}"
    if found.returncode:
        return f"no engine answers: {found.stderr.strip()[-200:]}; {HOW}"
    return ""


def engine_or_skip(*images: str) -> None:
    """Skips where no engine answers or an image is missing; fails where NERVE_REQUIRE asks for them."""
    why = lacking()
    if not why:
        absent = [each for each in images if not _present(each)]
        why = f"images are missing: {', '.join(absent)}; {HOW}" if absent else ""
    if why:
        (pytest.fail if required(SERVICE) else pytest.skip)(why)


def _present(image: str) -> bool:
    return docker("image", "ls", "-q", image).strip() != ""


def inspected(name: str) -> Any:  # JSON of the engine
    return json.loads(docker("inspect", name))[0]


def local_environment() -> dict[str, str]:
    """The variables that name stand-ins for images, where those are here and official ones are not."""
    lines = (ROOT / "deploy/containers/local.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


class Compose:
    """One run of the compose file under a name of its own."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self._environment = {**os.environ, **local_environment(), **environment}

    def __call__(self, *arguments: str, seconds: float = 300, check: bool = True) -> str:
        done = subprocess.run(
            ["docker", "compose", "-p", self.name, "-f", str(COMPOSE), *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=self._environment,
        )
        if check and done.returncode:
            logs = self("logs", "--tail", "20", check=False) if arguments[0] == "up" else ""
            raise AssertionError(f"compose {arguments}: {done.stderr[-2000:]}\n{logs[-6000:]}")
        return done.stdout if check else done.stdout + done.stderr

    def containers(self, service: str) -> list[str]:
        """Ids of the running containers of a service."""
        return self("ps", "-q", service).split()

    def nerve(self, service: str, *arguments: str, seconds: float = 120, check: bool = True) -> str:
        """A command of ours inside a container of `service`."""
        return self("exec", "-T", service, "nerve", *arguments, seconds=seconds, check=check)

    def python(self, service: str, code: str, *arguments: Sequence[str] | str) -> str:
        """A program inside a container of `service`."""
        words = [str(each) for each in arguments]
        return self("exec", "-T", service, "python", "-c", code, *words, seconds=600)

    def down(self) -> None:
        self("down", "--volumes", "--timeout", "5", "--remove-orphans", check=False)
