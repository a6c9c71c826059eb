"""One virtual environment per peer below the build directory, made once, pinned."""

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "peers" / "requirements"


def ensure(name: str, directory: Path) -> Path:
    """The interpreter of the peer's environment; made anew where the requirements changed."""
    requirements = REQUIREMENTS / f"{name}.txt"
    home = directory / name
    python = home / "bin" / "python"
    stamp = home / "requirements.sha256"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"installing {name} into {home} (once)", flush=True)
    venv.create(home, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--requirement", str(requirements)], check=True)
    stamp.write_text(digest)
    return python


def interpreter(environment: str | None, directory: Path) -> Path:
    """Peers without an environment of their own run in the one that runs the harness."""
    return Path(sys.executable) if environment is None else ensure(environment, directory)
