"""SQL text written once with named parameters and compiled once per dialect."""

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. `text` has `:name` parameters, which SQLite takes as they are.

    `postgres` is the same text with `$n`; `names` gives the order of its arguments.
    """

    text: str
    postgres: str = field(repr=False)
    names: tuple[str, ...] = field(repr=False)


def sql(text: str) -> Statement:
    """Compile `text`; a name may occur several times and is then one argument."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    text = " ".join(text.split())
    return Statement(text=text, postgres=_NAME.sub(number, text), names=tuple(names))
