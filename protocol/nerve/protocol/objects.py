"""A scoped, digest-checked reference to a body that is stored elsewhere."""

from typing import Annotated

from pydantic import StringConstraints

from nerve.protocol.wire import Count, Digest, Wire

Scope = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+=/-]{0,511}$")]


class ObjectRef(Wire):
    """The object `scope/digest`; whoever reads it compares size and digest."""

    scope: Scope
    digest: Digest
    bytes: Count
