"""A scoped, digest-checked reference to a value that is stored elsewhere."""

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from nerve.protocol.wire import Count, Digest, Wire

Scope = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+=/-]{0,511}$")]


class ObjectRef(Wire):
    """The object `scope/digest`; whoever reads it compares size and digest."""

    scope: Scope
    digest: Digest
    bytes: Count


class StoreProof(Wire):
    """An object that its writer can read: whoever shares the store can read it too."""

    address: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    """Where the writer's store is, for people, without secrets."""
    ref: ObjectRef


class Holds(StrEnum):
    """Which value of an execution an object holds."""

    ARGUMENTS = "arguments"
    RESULT = "result"


def value_scope(namespace: str, session: str, execution: str, holds: Holds) -> str:
    """Where a large value of one execution stands: it belongs to its Session, and to nobody else."""
    return f"{namespace}/{session}/{execution}/{holds}"


def journal_scope(thread: str) -> str:
    """Where the large checkpoints of a Thread (its whole id) stand."""
    return f"{thread}/journal"


def belongs(ref: ObjectRef, *, namespace: str, execution: str, holds: Holds) -> bool:
    """Whether a reference names this very value; that of another tenant or execution does not."""
    parts = ref.scope.split("/")
    return len(parts) == 4 and (parts[0], *parts[2:]) == (namespace, execution, holds)
