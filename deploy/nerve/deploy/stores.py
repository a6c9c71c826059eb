"""The object store that Brain and Hands share, as the command line names it, proven before it is used."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nerve.common.clock import Clock, SystemClock
from nerve.common.logs import redact
from nerve.common.objects.files import FileObjects
from nerve.common.objects.port import ObjectStore
from nerve.common.place import StateDirectory
from nerve.common.settings import Settings
from nerve.protocol.errors import BadInput, NerveError, Unavailable

KEY = "NERVE_OBJECTS_KEY"
SECRET = "NERVE_OBJECTS_SECRET"
SECRET_FILE = "NERVE_OBJECTS_SECRET_FILE"
WHERE = "--objects"

HOST_SECONDS = 30.0
"""How long a host waits for a store that does not answer yet when it starts."""
PAUSE_SECONDS = 0.5


def objects_at(
    settings: Settings, place: StateDirectory | None, clock: Clock
) -> ObjectStore | None:
    """The store of `settings`; without one, the directory's own, where its broker is the directory's too.

    None: nothing is shared, so that large values must fit into messages. Raises BadInput.
    """
    if not settings.objects:
        shared = place is not None and not settings.broker
        return FileObjects(place.objects, clock=clock) if shared and place is not None else None
    parts = urlsplit(settings.objects)
    if "@" in parts.netloc:
        raise BadInput(
            f"the address of objects holds credentials: {shown(settings)}",
            where=WHERE,
            next_step=f"leave them out, and set {KEY} and {SECRET} (or {SECRET_FILE})",
        )
    if parts.scheme == "file":
        return _folder(settings, parts.netloc, unquote(parts.path), clock)
    if parts.scheme == "s3":
        return _bucket(settings, clock)
    raise BadInput(
        f"there is no object store of the kind {parts.scheme[:40]!r}",
        where=WHERE,
        next_step="write s3://bucket/prefix?endpoint=http://host:9000 or file:///folder",
    )


def shown(settings: Settings) -> str:
    """The address without what may be secret in it."""
    return redact(settings.objects) if settings.objects else "the directory's own objects"


def _folder(settings: Settings, host: str, path: str, clock: Clock) -> ObjectStore:
    if host not in ("", "localhost") or not path.startswith("/"):
        raise BadInput(
            f"{shown(settings)} is no folder of this machine",
            where=WHERE,
            next_step="write file:///absolute/folder",
        )
    return FileObjects(Path(path), bytes_max=settings.object_bytes_max, clock=clock)


def _bucket(settings: Settings, clock: Clock) -> ObjectStore:
    if find_spec("boto3") is None:
        raise BadInput(
            "objects in a bucket need the extra s3",
            where=WHERE,
            next_step="pip install 'nerve[s3]'",
        )
    from nerve.common.objects.s3 import S3Objects, S3Settings

    found = S3Settings.parse(settings.objects, key=os.environ.get(KEY), secret=_secret())
    return S3Objects(found, bytes_max=settings.object_bytes_max, clock=clock)


def _secret() -> str | None:
    """Without one of ours, the usual AWS places are asked."""
    path = os.environ.get(SECRET_FILE)
    if os.environ.get(SECRET) or not path:
        return os.environ.get(SECRET)
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadInput(f"{SECRET_FILE}={path}: {error.strerror or error}", where=WHERE) from None


@asynccontextmanager
async def opened(
    settings: Settings,
    place: StateDirectory | None,
    clock: Clock,
    *,
    patience_seconds: float | None = None,
) -> AsyncGenerator[ObjectStore | None]:
    """The store, open and proven for the length of a block. Raises BadInput, Unavailable."""
    store = objects_at(settings, place, clock)
    if store is None:
        yield None
        return
    await store.open()
    try:
        if settings.objects:
            patience = HOST_SECONDS if patience_seconds is None else patience_seconds
            await prove(store, settings, clock, patience_seconds=patience)
        yield store
    finally:
        await store.close()


async def look(settings: Settings) -> tuple[str, str | None]:
    """For `doctor`: a line about the store that the settings name, and what is wrong with it."""
    try:
        async with opened(settings, None, SystemClock(), patience_seconds=0.0):
            return f"Objects {shown(settings)}: written and read", None
    except NerveError as error:
        return f"Objects {shown(settings)}: not usable", str(error)


async def prove(
    store: ObjectStore, settings: Settings, clock: Clock, *, patience_seconds: float
) -> None:
    """Write and read an object as this host will. Raises Unavailable where the store refuses it."""
    began = clock.monotonic()
    while True:
        try:
            await store.get(await store.put(f"probe/{settings.deployment}", b'"nerve"'))
            return
        except Unavailable as error:
            waited = clock.monotonic() - began
            if error.details.get("final") or waited >= patience_seconds:
                raise
        await clock.sleep(PAUSE_SECONDS)
