"""Tools of two pools: `hands` keeps notes, `shell` runs commands. Each pool runs only its own."""

import subprocess
from pathlib import Path

from nerve.protocol import Catalog, ToolFailed

WORK = Path("/work")
notes = Catalog(route="hands")
shell = Catalog(route="shell")


@notes.tool
async def note(text: str) -> str:
    """Write a line into the shared notes."""
    with (WORK / "notes.txt").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return f"noted: {text}"


@shell.tool(timeout_seconds=60)
def run(command: str) -> str:
    """Run a command where the shell pool lives, and return what it printed."""
    done = subprocess.run(["sh", "-c", command], cwd=WORK, capture_output=True, text=True)
    if done.returncode:
        raise ToolFailed(f"exit {done.returncode}: {done.stderr[-500:]}")
    return done.stdout[-2000:]
