"""Whoever only speaks the protocol installs pydantic and jiter and nothing else."""

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

import nerve.protocol
from support.services import required

ROOM = Path(nerve.protocol.__file__).parents[2]
PROGRAM = """
    import importlib, pkgutil, sys
    import nerve.protocol
    for found in pkgutil.walk_packages(nerve.protocol.__path__, "nerve.protocol."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    from nerve.protocol.commands import ReplyTo
    from nerve.protocol.controls import QueryExecution
    from nerve.protocol.envelope import open_envelope, seal
    asked = QueryExecution(execution="t" + "0" * 26 + ".x1", reply_to=ReplyTo(cell="c"))
    sealed = seal(body=asked, deployment="d", namespace="n", route="r", issued_at=1)
    assert open_envelope(sealed.raw).body == asked
    print(sorted(m for m in ("orjson", "rfc8785", "sqlalchemy", "asyncio") if m in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_protocol_works_where_pydantic_and_jiter_alone_are_installed(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    wanted = ["pydantic", "jiter"]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=200)
    if installed.returncode != 0 and not required("index"):
        pytest.skip(f"no package index here: {installed.stderr.strip()[-200:]}")
    assert installed.returncode == 0, installed.stderr
    done = subprocess.run(
        [python, "-c", textwrap.dedent(PROGRAM)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOM)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
    assert sys.version_info[:2] >= (3, 11)
