"""What every object store promises: whole immutable bodies, checked when read, honest when away."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import pytest

from nerve.common.objects import ObjectStore
from nerve.protocol.canonical import digest
from nerve.protocol.errors import BadInput, Damaged, NotFound, TooLarge, Unavailable
from nerve.protocol.objects import ObjectRef
from support.waiting import soon


class Bench(Protocol):
    @property
    def store(self) -> ObjectStore: ...

    @property
    def other(self) -> ObjectStore: ...

    @property
    def spoil(self) -> Callable[[ObjectRef, bytes], None]: ...

    @property
    def cut_off(self) -> Callable[[], object]: ...


BODIES = [b"", b"a", bytes(range(256)) * 300]


@pytest.mark.capability("G3.2")
@pytest.mark.parametrize("body", BODIES, ids=len)
async def test_what_was_put_can_be_read_by_another_client(bench: Bench, body: bytes) -> None:
    ref = await soon(bench.store.put("acme/s-1", body))
    assert ObjectRef(scope="acme/s-1", digest=digest(body), bytes=len(body)) == ref
    assert body == await soon(bench.other.get(ref))
    assert await soon(bench.other.exists(ref))


async def test_putting_the_same_bytes_again_is_the_same_object(bench: Bench) -> None:
    refs = [await soon(store.put("acme", b"body")) for store in (bench.store, bench.other)]
    assert refs[0] == refs[1]


async def test_many_writers_of_one_object_all_succeed(bench: Bench) -> None:
    stores = [bench.store, bench.other] * 8
    refs = await soon(asyncio.gather(*(store.put("acme", b"x" * 50_000) for store in stores)))
    assert 1 == len(set(refs))
    assert b"x" * 50_000 == await soon(bench.store.get(refs[0]))


@pytest.mark.capability("G3.2")
async def test_scopes_keep_equal_bodies_apart(bench: Bench) -> None:
    first = await soon(bench.store.put("acme/a", b"body"))
    second = await soon(bench.store.put("acme/b", b"body"))
    await soon(bench.store.delete(first))
    assert not await soon(bench.store.exists(first))
    assert b"body" == await soon(bench.store.get(second))


@pytest.mark.capability("G3.2")
@pytest.mark.parametrize("spoilt", [b"bodY", b"bod", b"body and more", b""], ids=repr)
async def test_an_object_that_changed_is_damaged_never_returned(
    bench: Bench, spoilt: bytes
) -> None:
    ref = await soon(bench.store.put("acme", b"body"))
    bench.spoil(ref, spoilt)
    with pytest.raises(Damaged, match="does not have the content"):
        await soon(bench.store.get(ref))


async def test_putting_a_damaged_object_again_heals_it(bench: Bench) -> None:
    ref = await soon(bench.store.put("acme", b"body"))
    bench.spoil(ref, b"bodY")
    await soon(bench.other.put("acme", b"body"))
    assert b"body" == await soon(bench.store.get(ref))


async def test_a_missing_object_is_not_found(bench: Bench) -> None:
    ref = ObjectRef(scope="acme/none", digest=digest(b"never put"), bytes=9)
    with pytest.raises(NotFound):
        await soon(bench.store.get(ref))
    assert not await soon(bench.store.exists(ref))
    await soon(bench.store.delete(ref))


async def test_a_store_out_of_reach_is_not_an_absent_object(bench: Bench) -> None:
    ref = await soon(bench.store.put("acme", b"body"))
    bench.cut_off()
    for call in (bench.store.get(ref), bench.store.exists(ref), bench.store.delete(ref)):
        with pytest.raises(Unavailable):
            await soon(call)
    with pytest.raises(Unavailable):
        await soon(bench.store.put("acme", b"other"))


async def test_a_closed_store_is_out_of_reach(bench: Bench) -> None:
    await soon(bench.store.close())
    await soon(bench.store.close())
    with pytest.raises(Unavailable):
        await soon(bench.store.put("acme", b"body"))


async def test_an_object_over_the_limit_is_refused(bench: Bench) -> None:
    with pytest.raises(TooLarge, match="over the limit"):
        await soon(bench.store.put("acme", b"x" * 100_001))


@pytest.mark.law(10)
@pytest.mark.parametrize(
    "scope",
    [
        "",
        "/",
        "/etc",
        "../up",
        "a/../../b",
        "a//b",
        "a/.",
        "a/",
        "a\x00b",
        "a\\b",
        "%new",
        "x" * 600,
    ],
    ids=ascii,
)
async def test_a_scope_that_could_lead_elsewhere_is_refused(bench: Bench, scope: str) -> None:
    with pytest.raises(BadInput):
        await soon(bench.store.put(scope, b"body"))
