"""Large values in a bucket whose server is slow, busy, stale, wrong, away or refuses: nothing lost, nothing doubled."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from nerve.common.objects.s3 import S3Settings
from nerve.common.settings import Settings
from nerve.deploy.stores import KEY, SECRET, look
from nerve.protocol.errors import BadInput, Unavailable
from support.buckets import bucket
from support.large_world import FAST, KIB, LargeWorld, submit
from support.s3_faults import S3Faults

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(180)]

TURNS = 4
SIZE = 300 * KIB


def address(where: S3Settings, endpoint: str, **options: str) -> str:
    more = "".join(f"&{name}={quote(value)}" for name, value in options.items())
    return f"s3://{where.bucket}/{where.prefix}?endpoint={quote(endpoint)}{more}"


@dataclass(slots=True)
class Place:
    world: LargeWorld
    faults: S3Faults
    where: S3Settings


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Place]:
    where = bucket()
    monkeypatch.setenv(KEY, str(where.key))
    monkeypatch.setenv(SECRET, str(where.secret))
    async with S3Faults.before(str(where.endpoint)) as faults:
        settings = Settings(**FAST, objects=address(where, faults.url))
        yield Place(LargeWorld(folder=tmp_path, settings=settings), faults, where)


def quarantined(world: LargeWorld) -> list[str]:
    found: list[str] = []
    for name in ("brain", "hands-hands"):
        connection = sqlite3.connect(world.state / f"{name}.db")
        found += [row[0] for row in connection.execute("select reason from inbox")]
        connection.close()
    return found


@asynccontextmanager
async def for_seconds(seconds: float, mend: Callable[[], None]) -> AsyncGenerator[None]:
    """A fault that ends by itself beside a block; the time is the fault's, not the test's."""

    async def later() -> None:
        await asyncio.sleep(seconds)
        mend()

    task = asyncio.create_task(later())
    yield
    await task


def slow(faults: S3Faults, on: bool) -> None:
    faults.slow_seconds = 1.0 if on else 0.0


def busy(faults: S3Faults, on: bool) -> None:
    faults.busy = on


def stale(faults: S3Faults, on: bool) -> None:
    faults.stale_seconds = 3.0 if on else 0.0


def wrong(faults: S3Faults, on: bool) -> None:
    faults.spoil = on


def swallowed(faults: S3Faults, on: bool) -> None:
    faults.swallow_puts = on


@pytest.mark.capability("E7.2", "E7.3", "G3.1", "G3.2")
@pytest.mark.report("U57", "U58")
@pytest.mark.parametrize("fault", [slow, busy, stale, wrong, swallowed])
async def test_a_store_that_misbehaves_loses_and_doubles_nothing(
    place: Place, fault: Callable[[S3Faults, bool], None]
) -> None:
    async with place.world.both() as (runtime, _):
        fault(place.faults, True)
        async with for_seconds(4.0, lambda: fault(place.faults, False)):
            turns = [await submit(runtime, f"t{n}", SIZE, SIZE) for n in range(TURNS)]
            results = [await turn.result(60) for turn in turns]
    assert [each.text for each in results] == [
        f"t{n} came={SIZE} right=True back={SIZE}" for n in range(TURNS)
    ]
    assert sorted(place.world.calls()) == [f"t{n}" for n in range(TURNS)]
    assert quarantined(place.world) == []
    puts = [
        each
        for each in place.faults.seen
        if each.startswith("PUT") and "/acme/" in each and "/journal/" not in each
    ]
    # However often a put was tried, one call has one object each way.
    assert len(set(puts)) == 2 * TURNS


@pytest.mark.capability("G3.1")
@pytest.mark.parametrize("wrong", ["secret", "key", "bucket", "nothing listens"])
async def test_a_start_that_cannot_use_its_store_is_refused_with_an_address_and_no_secret(
    place: Place, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr("nerve.deploy.stores.HOST_SECONDS", 0.5)
    objects = place.world.settings.objects
    if wrong == "secret":
        monkeypatch.setenv(SECRET, "canary-of-a-secret")
    elif wrong == "key":
        monkeypatch.setenv(KEY, "nobody")
    elif wrong == "bucket":
        objects = objects.replace(place.where.bucket, "nerve-no-such-bucket")
    else:
        objects = address(place.where, "http://127.0.0.1:1")
    wrong_one = Settings(**FAST, objects=objects)
    line, problem = await look(wrong_one)
    assert line.endswith(": not usable") and "the objects in s3://nerve-" in str(problem)
    for opened in (place.world.brain, place.world.hands):
        with pytest.raises(Unavailable) as refused:
            async with opened(wrong_one):
                pass
        text = str(refused.value)
        assert "the objects in s3://nerve-" in text and "--objects" in text
        assert "canary-of-a-secret" not in text and str(place.where.secret) not in text


async def test_credentials_in_an_address_are_refused_and_not_repeated(tmp_path: Path) -> None:
    world = LargeWorld(folder=tmp_path)
    objects = "s3://key:canary-of-a-secret@bucket/prefix"
    with pytest.raises(BadInput) as refused:
        async with world.hands(Settings(**FAST, objects=objects)):
            pass
    assert KEY in str(refused.value)
    assert "canary-of-a-secret" not in str(refused.value)


async def test_doctor_writes_and_reads_the_store_that_the_settings_name(place: Place) -> None:
    line, problem = await look(place.world.settings)
    assert line.endswith(": written and read") and problem is None
