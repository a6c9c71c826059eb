"""One line of JSON per request to a scripted model, so that questions are counted from outside."""

import json
import os
from pathlib import Path
from typing import Any


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add one line in one write, so that processes may share the file."""
    line = json.dumps(record, sort_keys=True, ensure_ascii=True) + "\n"
    descriptor = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
