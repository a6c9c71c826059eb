"""The entry point `nerve`: checks what it stands on, runs one command, and turns errors into sentences.

It reads as any Python from 3.6 on, so that an older one gets a sentence too. Exit codes: 0 done,
1 the Turn failed, 2 usage, 3 conflict, 4 not found, 5 waiting or UNKNOWN, 6 unreachable, 130 interrupted.
"""

import os
import sys


def main() -> None:
    """Run the command line and exit."""
    problem = unsupported(sys.version_info[:2], sys.platform)
    if problem:
        sys.stderr.write("nerve: " + problem + "\n")
        sys.exit(2)
    from nerve.deploy.entry import run

    code = run(sys.argv[1:])
    # Threads of tools that never end must not keep a host from ending.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)


def unsupported(version: "tuple[int, ...]", platform: str) -> str:
    """Why nerve cannot run here, in a sentence; empty where it can."""
    if version < (3, 11):
        found = ".".join(map(str, version))
        return (
            "Python " + found + " is too old: nerve needs 3.11 or newer; make an environment with"
            " one, for instance `python3.11 -m venv .venv`."
        )
    if platform.startswith(("win", "cygwin")):
        return (
            "Windows is not supported: nerve relies on file locks that die with their process;"
            " run it inside WSL 2, or on Linux or macOS."
        )
    return ""
