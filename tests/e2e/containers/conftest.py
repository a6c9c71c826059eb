"""One run of the compose file for all of these tests, with tools whose effects lie outside the ledgers."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.containers import APPS, World
from support.engine import Compose, engine_or_skip

IMAGES = ("nerve-brain", "nerve-hands")
REPLICAS = ("--scale", "hands=3", "--scale", "hands-shell=2")
SLOTS = 8


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    engine_or_skip(*IMAGES)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nerve-work-")))
        os.chmod(work, 0o777)
        compose = Compose(
            f"nerve-test-{secrets.token_hex(3)}",
            {
                "NERVE_BRAIN_APP": str(APPS / "brain"),
                "NERVE_HANDS_APP": str(APPS / "hands"),
                "NERVE_WORK": str(work),
                "NERVE_HANDS_SLOTS": str(SLOTS),
            },
        )
        stack.callback(compose.down)
        compose("up", "--detach", "--wait", "--no-build", *REPLICAS, seconds=400)
        yield World(compose, work)
