"""The folder of one demo: what stands where, and how the children find it."""

import json
import shutil
import tempfile
from pathlib import Path

from nerve.common.place import StateDirectory
from nerve.protocol.errors import BadInput, NotFound

APP = "app.py"
STATE = "state"
EFFECTS = "effects.jsonl"
CALLS = "calls.jsonl"
REQUESTS = "model-requests.jsonl"
SCRIPT = "script.json"
PORT = "model.port"
_SETTINGS = "demo.json"
SHIPPED = Path(__file__).parent / "logs"

_APP = '''"""The agent of `nerve demo`; how it is made is in nerve.deploy.demo.incident."""

from pathlib import Path

from nerve.deploy.demo.incident import make

agent, tools = make(Path(__file__).parent)
'''


def prepare(directory: Path | None) -> Path:
    """Make the folder, which must be new or empty.

    Raises:
        BadInput: it holds something, or nothing can be written there.
    """
    if directory is None:
        root = Path(tempfile.mkdtemp(prefix="nerve-demo-"))
    else:
        root = directory.absolute()
        _make(root)
    try:
        StateDirectory.open(root / STATE, create=True)
        (root / APP).write_text(_APP, encoding="utf-8")
    except (OSError, BadInput):
        if directory is None:
            remove(root)
        raise
    return root


def remove(root: Path) -> None:
    """Take away everything that the demo wrote; it made the folder itself."""
    shutil.rmtree(root, ignore_errors=True)


def settle(root: Path, logs: Path) -> None:
    """Write down which logs this demo is about."""
    (root / _SETTINGS).write_text(json.dumps({"logs": str(logs.absolute())}), encoding="utf-8")


def logs_of(root: Path) -> Path:
    return Path(json.loads((root / _SETTINGS).read_text(encoding="utf-8"))["logs"])


def model_url(root: Path) -> str:
    """Where the scripted model listens. Raises NotFound before it ever ran."""
    try:
        port = int((root / PORT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFound(
            "the scripted model of this demo never ran",
            where=str(root / PORT),
            next_step="`nerve demo` starts it",
        ) from None
    return f"http://127.0.0.1:{port}/v1"


def _make(root: Path) -> None:
    if root.exists() and not root.is_dir():
        raise BadInput(f"{root} is a file", where="--dir", next_step="Name a new or empty folder")
    if root.is_dir() and any(root.iterdir()):
        raise BadInput(
            f"{root} is not empty", where="--dir", next_step="Name a new or empty folder"
        )
    root.mkdir(parents=True, exist_ok=True)
