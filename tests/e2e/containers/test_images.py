"""The two images by themselves: how they run, what is in them, and what a user builds on them."""

import json
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

from nerve.common.settings import Settings
from support.containers import APPS
from support.engine import docker, engine_or_skip, inspected

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(300)]

IMAGES = {"nerve-brain": "brain", "nerve-hands": "hands"}
SECRET = re.compile(r"://[^/\s:@]+:[^/\s@]+@|pip\.conf\s|index-url|BEGIN (RSA |EC )?PRIVATE", re.I)
WHOLE = """
import asyncio, os, sys
sys.path.insert(0, "/app")
print(os.getuid(), "/opt/tools" in sys.path, os.access("/opt/nerve/bin/nerve", os.W_OK))
"""


@pytest.fixture(params=IMAGES)
def image(request: pytest.FixtureRequest) -> str:
    engine_or_skip(request.param)
    return str(request.param)


@pytest.mark.capability("H3.1")
def test_an_image_says_how_it_runs(image: str) -> None:
    found = inspected(image)["Config"]
    assert "10001:10001" == found["User"]
    assert ["nerve", IMAGES[image]] == found["Entrypoint"]
    assert ["app.py"] == found["Cmd"]
    assert ["CMD", "python", "-m", "nerve.deploy.health"] == found["Healthcheck"]["Test"]
    assert {"/var/lib/nerve"} == set(found["Volumes"])


def test_no_layer_and_no_variable_holds_a_secret_or_an_index_s_address(image: str) -> None:
    history = docker("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    # The mounts are named there, and what they held is not.
    told = re.sub(r"--mount=type=secret,\S+", "", history)
    assert [] == SECRET.findall(told)
    assert [] == SECRET.findall(json.dumps(inspected(image)["Config"]["Env"]))
    look = "cat /etc/pip.conf /run/secrets/* 2>/dev/null; true"
    assert "" == docker("run", "--rm", "--entrypoint", "sh", image, "-c", look).strip()


def test_there_is_no_compiler_and_only_the_brain_has_a_model_s_client(image: str) -> None:
    script = (
        "for c in cc gcc make; do command -v $c; done; ls /opt/nerve/lib/python3*/site-packages"
    )
    found = docker("run", "--rm", "--entrypoint", "sh", image, "-c", script).split()
    assert not {each for each in found if each.endswith(("/cc", "/gcc", "/make"))}
    assert ("openai" in found) == (image == "nerve-brain")
    assert {"aio_pika", "asyncpg", "boto3", "nerve"} <= set(found)


@pytest.fixture
def built(tmp_path: Path) -> str:
    """An image as a user builds it; without packages, for which an index would be needed."""
    engine_or_skip("nerve-hands")
    shutil.copy(APPS / "hands/app.py", tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM nerve-hands\nCOPY app.py .\n")
    name = "nerve-test-user-image"
    docker("build", "-q", "-t", name, str(tmp_path))
    return name


def test_a_user_s_image_runs_alone_read_only_and_drains_at_sigterm(built: str) -> None:
    """Without a server: the volume holds ledger and queue, and the host itself is process 1."""
    container = docker(
        "run", "-d", "--read-only", "--cap-drop", "ALL", "-e", "NERVE_ROUTE=shell", built
    ).strip()
    try:
        until_healthy(container)
        assert "ready\n" == docker("exec", container, "nerve", "health")
        first = docker("exec", container, "cat", "/proc/1/cmdline").split("\0")
        assert ["hands", "app.py"] == first[-3:-1]
        began = time.monotonic()
        docker("stop", "--time", "40", container)
        assert time.monotonic() - began < Settings().drain_seconds
        state = inspected(container)["State"]
        assert (0, False) == (state["ExitCode"], state["OOMKilled"])
        assert "Stopped; nothing was cancelled." in docker("logs", container, check=False)
    finally:
        docker("rm", "-f", "-v", container)


def test_packages_of_tools_stand_behind_ours_and_ours_cannot_be_changed(built: str) -> None:
    said = docker("run", "--rm", "--entrypoint", "python", built, "-c", WHOLE).split()
    assert ["10001", "True", "False"] == said
    place = (
        "import sys; print([p for p in sys.path if 'site-packages' in p or p == '/opt/tools'][-1])"
    )
    assert (
        "/opt/tools" == docker("run", "--rm", "--entrypoint", "python", built, "-c", place).strip()
    )


def until_healthy(container: str) -> None:
    end = time.monotonic() + 120
    pause = threading.Event()
    while inspected(container)["State"]["Health"]["Status"] != "healthy":
        assert time.monotonic() < end, docker("logs", container, check=False)
        pause.wait(0.3)
