"""SQL text written once with named parameters and compiled once per dialect."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

_NAME = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_LOCK = re.compile(r" for (?:update|share)(?: of [a-z_, ]+)?(?: skip locked)?(?=\)|$)")

ORDINAL = "ordinal_"
"""The column by which rows of many executions of one statement are told apart."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, as it was written and as each driver takes it.

    Arguments are positional, which costs drivers less than names: `arguments` puts named ones in
    the order that both texts number them in. `for update` and `for share` are for servers: SQLite
    has one writer and is not shown them. `counted` is the server's text with one argument more, an
    ordinal that comes back with every row read or written.
    """

    text: str
    sqlite: str = field(repr=False)
    postgres: str = field(repr=False)
    counted: str = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    reads: bool = field(repr=False)
    arguments: Callable[[Mapping[str, Any]], tuple[Any, ...]] = field(repr=False)


def sql(text: str, *, server: str | None = None) -> Statement:
    """Compile `text`; a name may occur several times and is then one argument.

    `server` is the text for servers where that has to be another one; its names are the same.
    """
    text = " ".join(text.split())
    names = tuple(dict.fromkeys(_NAME.findall(text)))

    def numbered(mark: str, text: str = text) -> str:
        return _NAME.sub(lambda match: f"{mark}{names.index(match.group(1)) + 1}", text)

    postgres = numbered("$", text if server is None else " ".join(server.split()))
    return Statement(
        text=text,
        sqlite=_LOCK.sub("", numbered("?")),
        postgres=postgres,
        counted=_counted(postgres, len(names) + 1),
        names=names,
        reads=text.startswith("select "),
        arguments=_order(names),
    )


def _counted(text: str, number: int) -> str:
    column = f"${number}::int as {ORDINAL}"
    if text.startswith("select "):
        return f"select {column}, {text[len('select ') :]}"
    joint = "," if " returning " in text else " returning"
    return f"{text}{joint} {column}"


def _order(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    if names:
        (name,) = names
        return lambda given: (given[name],)
    return lambda given: ()
