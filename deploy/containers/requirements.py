"""Prints what a pyproject.toml asks for, with some of its extras: requirements.py FILE [EXTRA...]"""

import sys
import tomllib
from pathlib import Path


def main(file: str, *extras: str) -> None:
    project = tomllib.loads(Path(file).read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    print("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
