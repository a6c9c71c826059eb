"""`python -m nerve.protocol.schema --check | --write`: compares or renews the shipped schemas."""

import sys

from nerve.protocol.schema.documents import documents, folder


def stale() -> list[str]:
    """The files that differ from what the models say, and those that should not be there."""
    made = documents()
    present = {path.name: path.read_bytes() for path in folder().glob("*.json")}
    return sorted(name for name in made.keys() | present if made.get(name) != present.get(name))


def write() -> None:
    folder().mkdir(parents=True, exist_ok=True)
    made = documents()
    for path in folder().glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, document in made.items():
        (folder() / name).write_bytes(document)


def main(arguments: list[str]) -> int:
    if arguments == ["--write"]:
        write()
        return 0
    if arguments != ["--check"]:
        print("usage: python -m nerve.protocol.schema --check | --write", file=sys.stderr)
        return 2
    differing = stale()
    for name in differing:
        print(f"{name} is not what the models say", file=sys.stderr)
    if differing:
        print("run: python -m nerve.protocol.schema --write", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
