"""What an object store promises: immutable bodies under `scope/digest`, checked whenever they are read."""

from typing import Protocol

from pydantic import ValidationError

from nerve.protocol.canonical import digest
from nerve.protocol.errors import InvalidName
from nerve.protocol.objects import ObjectRef

OBJECT_BYTES_MAX = 64 * 1024 * 1024
_SEGMENT_BYTES_MAX = 200


class ObjectStore(Protocol):
    """Bodies too large for a message or a row.

    - The key of a body is its own digest within a scope, so that a repeated `put` of the same bytes is
      the same object and nothing is ever overwritten by something else.
    - `put` returns after the body would survive the loss of power.
    - A missing object (`NotFound`) and a store out of reach (`Unavailable`) are different answers:
      after the second nobody knows anything.
    - An object may be read by whoever has its reference; scopes keep tenants and Sessions apart for
      retention and erasure.
    """

    @property
    def shown(self) -> str:
        """Where it is, for people; holds no secret."""
        ...

    async def open(self) -> None: ...

    async def put(self, scope: str, body: bytes) -> ObjectRef:
        """Store a body if it is absent.

        Raises:
            TooLarge: over the store's limit; nothing was stored.
            DiskFull, Unavailable: it may or may not be stored; put it again.
        """
        ...

    async def get(self, ref: ObjectRef, *, patient: bool = True) -> bytes:
        """The body, equal in size and digest to what the reference says.

        `patient`: where a store may answer after a put as if it had not been, it is asked again for
        some seconds before an object is called missing.

        Raises:
            NotFound: the store answers that there is no such object.
            Damaged: what is stored is not what was stored.
            Unavailable: the store does not answer.
        """
        ...

    async def exists(self, ref: ObjectRef) -> bool:
        """Whether an object of that size is there. Does not read it."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Remove an object; harmless where there is none. Only the collector of a ledger may call it."""
        ...

    async def close(self) -> None: ...


def reference(scope: str, body: bytes) -> ObjectRef:
    """The name that a body has within a scope. Raises InvalidName."""
    try:
        ref = ObjectRef(scope=scope, digest=digest(body), bytes=len(body))
    except ValidationError:
        raise InvalidName(
            f"{scope[:80]!r} is not an object scope",
            next_step="Use letters, digits and ._:@+=- between single slashes",
        ) from None
    segments(scope)
    return ref


def segments(scope: str) -> list[str]:
    """The parts of a scope, none of which leads elsewhere. Raises InvalidName."""
    parts = scope.split("/")
    for part in parts:
        if part in {"", ".", ".."} or len(part.encode()) > _SEGMENT_BYTES_MAX:
            raise InvalidName(
                f"an object scope has the part {part[:80]!r}",
                where=scope[:512],
                next_step="Use names of at most 200 bytes between single slashes",
            )
    return parts
