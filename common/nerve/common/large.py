"""Values too large for a message: durable in the object store before the row that refers to them.

An object has a row in the ledger of whoever put it, committed before the put (STAGED). The transaction
that refers to it makes it LIVE, and is refused where the collector has it: that one commits DELETING,
for objects that nothing refers to, before it deletes. So no row is ever without its object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import orjson

from nerve.common import faults
from nerve.common.clock import Clock
from nerve.common.lifecycle import Backoff
from nerve.common.logs import get_log
from nerve.common.objects.port import ObjectStore, reference
from nerve.common.sql.law import Row, Tx, law
from nerve.common.sql.ledger import Ledger
from nerve.common.sql.statement import Statement, sql
from nerve.protocol.canonical import JsonValue, canonical_bytes, read_strict
from nerve.protocol.errors import (
    BadInput,
    Damaged,
    LedgerUnavailable,
    NerveError,
    NotFound,
    TooLarge,
    Unavailable,
)
from nerve.protocol.objects import Holds, ObjectRef, StoreProof, value_scope

_log = get_log("nerve.common.large")

COLLECT_ROWS = 100
LOST = (NotFound, Damaged)
"""Answers of a store that say: not there, or not what it should be."""

STATE = sql("select state from object where scope = :scope and digest = :digest")
STAGE = sql(
    "insert into object (scope, digest, bytes, owner, state, created_at)"
    " values (:scope, :digest, :bytes, :owner, 'STAGED', :now)"
    " on conflict (scope, digest) do update set created_at = excluded.created_at"
)
REFER = sql(
    "update object set state = 'LIVE', created_at = :now"
    " where scope = :scope and digest = :digest and state <> 'DELETING'"
)
FORGET = sql("delete from object where scope = :scope and digest = :digest and state = 'DELETING'")

faults.register("common", ["common.large.staged", "common.large.put", "common.large.condemned"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    ref: ObjectRef
    owner: str
    now: int


@law("common.large.stage", keys=lambda unit: (f"object:{unit.ref.scope}",))
async def stage(tx: Tx, unit: Staged) -> None:
    """Write down what is about to be put. Raises Unavailable while the collector has it."""
    ref = unit.ref
    row = await tx.one(STATE, scope=ref.scope, digest=ref.digest)
    if row is not None and row["state"] == "DELETING":
        raise _collected(ref)
    await tx.run(
        STAGE,
        scope=ref.scope,
        digest=ref.digest,
        bytes=ref.bytes,
        owner=unit.owner,
        now=unit.now,
    )


async def refer(tx: Tx, refs: Sequence[ObjectRef], *, now: int) -> None:
    """In the transaction that commits rows which name `refs`. Raises Unavailable: stow them again."""
    for ref in refs:
        if not await tx.run(REFER, scope=ref.scope, digest=ref.digest, now=now):
            raise _collected(ref)


@law("common.large.forget", keys=lambda unit: ())
async def forget(tx: Tx, unit: Sequence[ObjectRef]) -> None:
    """The objects are deleted: so are their rows."""
    await tx.many(FORGET, [{"scope": ref.scope, "digest": ref.digest} for ref in unit])


@final
class Large:
    """Stows and fetches the large values of one ledger.

    A value below `inline_bytes` travels in its message; one above `bytes_max` is refused.
    """

    def __init__(
        self,
        store: ObjectStore,
        ledger: Ledger,
        *,
        inline_bytes: int,
        bytes_max: int,
        clock: Clock,
    ) -> None:
        self.store = store
        self._inline_bytes = inline_bytes
        self._bytes_max = bytes_max
        self._ledger = ledger
        self._clock = clock
        self._backoff = Backoff(first_seconds=0.1, most_seconds=5.0)

    async def stow(
        self, value: Any, *, namespace: str, session: str, execution: str, holds: Holds
    ) -> ObjectRef | None:
        """The reference of a JSON value that is durable; None where it is small enough for a message.

        Waits for a store that is away. Raises what the ledger raises, and TooLarge.
        """
        encoded = self._encoded(value)
        if encoded is None:
            return None
        scope = value_scope(namespace, session, execution, holds)
        if len(encoded) > self._bytes_max:
            raise TooLarge(
                f"the {holds} have {len(encoded)} bytes; the limit is {self._bytes_max}",
                where=execution,
                next_step="Pass less, for instance a name or URL under which the rest is found",
            )
        return await self._put(scope, execution, encoded)

    async def lay_down(self, parts: Sequence[bytes], *, scope: str, owner: str) -> ObjectRef | None:
        """The reference of lines that are durable as one object; None where they are few enough for a row.

        Waits for a store that is away. Raises what the ledger raises, and TooLarge.
        """
        if sum(map(len, parts)) < self._inline_bytes:
            return None
        return await self._put(scope, owner, b"\n".join(parts))

    def _encoded(self, value: Any) -> bytes | None:
        """Canonical bytes of what is large; most values are small, and a rough look says so."""
        try:
            if len(orjson.dumps(value)) < self._inline_bytes // 2:
                return None
        except TypeError:
            pass  # A number that only the canonical form carries, or refuses by name.
        encoded = canonical_bytes(value)
        return encoded if len(encoded) >= self._inline_bytes else None

    async def _put(self, scope: str, owner: str, value: bytes) -> ObjectRef:
        failures = 0
        while True:
            try:
                unit = Staged(ref=reference(scope, value), owner=owner, now=self._clock.now_ms())
                await self._ledger.commit(stage, unit)
                await faults.apoint("common.large.staged")
                ref = await self.store.put(scope, value)
                await faults.apoint("common.large.put")
                return ref
            except LedgerUnavailable:
                raise
            except Unavailable as error:
                failures += 1
                _log.warning("a large value waits for the object store", cause="stow", error=error)
            await self._clock.sleep(self._backoff.after(failures))

    async def fetch(self, ref: ObjectRef, *, patient: bool = False) -> JsonValue:
        """The value that a reference names. Raises NotFound, Damaged or Unavailable."""
        return (await self.fetched(ref, patient=patient))[1]

    async def fetched(self, ref: ObjectRef, *, patient: bool = False) -> tuple[bytes, JsonValue]:
        """As `fetch`, with the bytes beside it."""
        body = await self.store.get(ref, patient=patient)
        try:
            return body, read_strict(body, where=ref.scope, bytes_max=len(body))
        except BadInput as error:
            raise Damaged(
                f"the object {ref.digest} is not what a message may refer to: {error.message}",
                where=ref.scope,
                next_step="its writer must put canonical JSON",
            ) from error

    async def proof(self, deployment: str) -> StoreProof:
        """An object of this ledger that whoever shares the store can read."""
        body = canonical_bytes(self._ledger.identity.id)
        ref = await self.store.put(f"probe/{deployment}", body)
        return StoreProof(address=self.store.shown[:1024], ref=ref)

    async def unreadable(self, proof: StoreProof) -> str | None:
        """Why the object of another side cannot be read here; None: it can."""
        try:
            await self.store.get(proof.ref)
            return None
        except LOST as error:
            return (
                f"what was put into {proof.address} is not in {self.store.shown}: {error.message}"
            )
        except Unavailable as error:
            return error.message


@final
class Collector:
    """The scan that deletes what nothing refers to, after a grace.

    `used` is the condition under which the rows of an object's owner still refer to it, as SQL.
    """

    name = "collector"

    def __init__(
        self,
        store: ObjectStore,
        ledger: Ledger,
        used: str,
        *,
        grace_seconds: float,
        clock: Clock,
    ) -> None:
        self.interval_seconds = max(1.0, min(60.0, grace_seconds / 4))
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._grace_ms = int(grace_seconds * 1000)
        self._laws = Condemning.of(used)

    async def run_once(self) -> bool:
        """Delete a page of what is over; True where more may be."""
        before = self._clock.now_ms() - self._grace_ms
        rows = await self._ledger.read(lambda tx: tx.all(self._laws.find, before=before, limit=1))
        if not rows:
            return False
        refs = await self._ledger.commit(condemn, Condemn(laws=self._laws, before=before))
        await faults.apoint("common.large.condemned")
        gone: list[ObjectRef] = []
        for ref in refs:
            try:
                await self._store.delete(ref)
                gone.append(ref)
            except NerveError as error:
                _log.warning("an object could not be deleted", cause="collector", error=error)
                break
        if gone:
            await self._ledger.commit(forget, gone)
        return len(gone) == COLLECT_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemning:
    """The two statements of a collector."""

    find: Statement
    mark: Statement

    @classmethod
    def of(cls, used: str) -> "Condemning":
        # Referring to an object renews its time, so that a row that was just used is young here too.
        over = (
            "(state = 'DELETING' or created_at < :before"
            f" and (state = 'STAGED' or not exists ({used})))"
        )
        return cls(
            find=sql(
                f"select scope, digest, bytes from object where {over}"
                " order by created_at limit :limit"
            ),
            mark=sql(
                "update object set state = 'DELETING'"
                f" where scope = :scope and digest = :digest and {over}"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemn:
    laws: Condemning
    before: int


@law("common.large.condemn", keys=lambda unit: ("objects",))
async def condemn(tx: Tx, unit: Condemn) -> list[ObjectRef]:
    """Mark what may go, so that no transaction can refer to it any more."""
    condemned: list[ObjectRef] = []
    for row in await tx.all(unit.laws.find, before=unit.before, limit=COLLECT_ROWS):
        if await tx.run(
            unit.laws.mark, scope=row["scope"], digest=row["digest"], before=unit.before
        ):
            condemned.append(_ref(row))
    return condemned


def _ref(row: Row) -> ObjectRef:
    return ObjectRef(scope=row["scope"], digest=row["digest"], bytes=row["bytes"])


def _collected(ref: ObjectRef) -> NerveError:
    return Unavailable(
        f"the object {ref.digest} is being deleted, since nothing referred to it",
        where=ref.scope,
        next_step="nothing: it is put again by itself",
    )
