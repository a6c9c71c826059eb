"""The command line on PostgreSQL: secrets come from the environment or a file, and are shown nowhere."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.servers.postgres import database

pytestmark = pytest.mark.external


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with database() as made:
        yield made


def nerve(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nerve.deploy", *arguments],
        env=os.environ | environment,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


async def test_a_ledger_is_made_looked_at_and_refused_by_name(url: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{url}\n")
    given = {"NERVE_DATABASE_FILE": str(secret)}
    empty = nerve(tmp_path, "migrate", "status", **given)
    assert (empty.returncode, "no ledger yet" in empty.stdout) == (3, True), empty
    unsaid = nerve(tmp_path, "migrate", "up", **given)
    assert (unsaid.returncode, "--room" in unsaid.stderr) == (2, True), unsaid
    made = nerve(tmp_path, "migrate", "up", "--room", "brain", **given)
    assert (made.returncode, "current" in made.stdout) == (0, True), made
    listed = nerve(tmp_path, "ls", "--json", **given)
    assert (listed.returncode, json.loads(listed.stdout)) == (0, {"turns": []}), listed
    unknown = nerve(tmp_path, "submit", "nobody", "x", **given)
    assert unknown.returncode == 4, unknown
    well = nerve(tmp_path, "doctor", **given)
    assert (well.returncode, "Nothing is wrong." in well.stdout) == (0, True), well
    other = nerve(tmp_path, "reconcile", NERVE_DATABASE=url)
    assert (other.returncode, "not of hands" in other.stderr) == (3, True), other
    for each in (empty, unsaid, made, listed, unknown, well, other):
        assert ":nerve@" not in each.stdout + each.stderr


async def test_a_server_that_is_away_is_said_at_once(tmp_path: Path) -> None:
    away = {"NERVE_DATABASE": "postgresql://u:s3cr3t-word@127.0.0.1:1/x"}
    for command in (["ls"], ["why", "t0"], ["doctor"], ["migrate", "status"]):
        said = nerve(tmp_path, *command, **away)
        assert said.returncode == 6, said
        assert "s3cr3t" not in said.stdout + said.stderr
