"""Frames of warm Threads, and their restore from the journal with every digest checked.

A warm host appends to what it has, so that a Step does not grow with the Thread's history. A cold
restore reads the whole retained journal, which is linear in it.
"""

from collections import OrderedDict

import orjson
from pydantic import ValidationError

from nerve.brain.harness import Frame
from nerve.brain.ledger.claim import Claimed
from nerve.brain.ledger.definitions import parse_definition
from nerve.brain.ledger.step_unit import PLAIN
from nerve.brain.state.checkpoint import GENESIS, chained
from nerve.common.large import LOST
from nerve.common.objects.port import ObjectStore
from nerve.common.sql import Ledger, Row, Tx, sql
from nerve.protocol.errors import Damaged, NotFound
from nerve.protocol.objects import ObjectRef

WARM_FRAMES_MAX = 1024
WARM_BYTES_MAX = 32 * 1024 * 1024

JOURNAL = sql(
    "select position, entries, state, digest, codec from journal where thread = :thread"
    " and position <= :position order by position"
)


class Frames:
    """The Frames of Threads that ran here lately, least recently used first."""

    def __init__(
        self, ledger: Ledger, *, keep: int = WARM_FRAMES_MAX, objects: ObjectStore | None = None
    ) -> None:
        self._ledger = ledger
        self._objects = objects
        self._keep = keep
        self._warm: OrderedDict[str, tuple[str, Frame]] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._warm_bytes = 0
        self.cold_restores = 0

    async def load(self, claimed: Claimed) -> Frame:
        """The Frame at the position and digest that the claim saw.

        Raises Damaged, Unavailable (the object store is away), and what the ledger raises.
        """
        warm = self._warm.pop(claimed.thread, None)
        self._warm_bytes -= self._bytes.get(claimed.thread, 0) if warm is not None else 0
        if warm is not None and warm[0] == claimed.digest:
            return warm[1]
        self._bytes.pop(claimed.thread, None)
        if claimed.position == 0 and claimed.digest == GENESIS:
            return _empty(claimed)
        self.cold_restores += 1
        return await self._restore(claimed)

    def keep(self, thread: str, digest: str, frame: Frame, *, added: int) -> None:
        """Remember a Frame after its checkpoint, of `added` bytes, was committed under `digest`.

        A few long histories are kept rather than many: bytes are bounded as well as numbers.
        """
        if self._keep == 0:
            return
        self._warm[thread] = (digest, frame)
        self._bytes[thread] = self._bytes.get(thread, 0) + added
        self._warm_bytes += self._bytes[thread]
        while len(self._warm) > self._keep or (
            len(self._warm) > 1 and self._warm_bytes > WARM_BYTES_MAX
        ):
            oldest, _ = self._warm.popitem(last=False)
            self._warm_bytes -= self._bytes.pop(oldest)

    async def _restore(self, claimed: Claimed) -> Frame:
        async def query(tx: Tx) -> list[Row]:
            return list(await tx.all(JOURNAL, thread=claimed.thread, position=claimed.position))

        frame = _empty(claimed)
        digest = GENESIS
        for row in await self._ledger.read(query):
            stored = await self._stored(claimed.thread, row)
            if stored is None:
                break
            digest = chained(digest, *stored)
            if digest != row["digest"]:
                break
            entries, state = stored
            frame.entries.extend(orjson.loads(entries))
            frame.state = orjson.loads(state)
            frame.position = row["position"]
            self._bytes[claimed.thread] = self._bytes.get(claimed.thread, 0) + len(entries)
        if digest != claimed.digest or frame.position != claimed.position:
            raise Damaged(
                f"the checkpoint chain of {claimed.thread} breaks after position {frame.position}",
                where=f"journal of {claimed.thread}",
                next_step="restore the ledger from a backup; the Thread is not advanced before",
            )
        return frame

    async def _stored(self, thread: str, row: Row) -> tuple[bytes, bytes] | None:
        """(entries, state) of one checkpoint; None where the row is no such thing."""
        entries, state = row["entries"], row["state"]
        if not (isinstance(entries, bytes) and isinstance(state, bytes)):
            return None
        if row["codec"] == PLAIN:
            return entries, state
        try:
            body = await self._fetched(ObjectRef.model_validate_json(entries))
        except ValidationError:
            return None
        except LOST as error:
            raise Damaged(
                f"the checkpoint {row['position']} of {thread} cannot be read: {error.message}",
                where=f"journal of {thread}",
                next_step="bring the object back, or restore ledger and store from one backup;"
                " the Thread is not advanced before",
            ) from error
        entries, _, state = body.partition(b"\n")
        return entries, state

    async def _fetched(self, ref: ObjectRef) -> bytes:
        if self._objects is None:
            raise NotFound(f"it stands in an object store as {ref.scope}, and none is given here")
        return await self._objects.get(ref)


def _empty(claimed: Claimed) -> Frame:
    return Frame(
        definition=parse_definition(claimed.definition), position=0, entries=[], state=None
    )
