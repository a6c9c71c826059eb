"""Small processes for what no running host does by itself."""

import asyncio
from pathlib import Path

from nerve.common.objects.files import FileObjects


def put_object(folder: str, text: str) -> int:
    """Put one object and end."""
    return asyncio.run(_put(Path(folder), text.encode()))


async def _put(folder: Path, body: bytes) -> int:
    objects = FileObjects(folder)
    await objects.open()
    try:
        await objects.put("chaos", body)
    finally:
        await objects.close()
    return 0
