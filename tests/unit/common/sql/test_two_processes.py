"""Two processes write to one file for a while: no lock error surfaces and nothing is lost."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.item_ledger import ids, item_ledger

WRITER = """
import asyncio, json, sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from support.item_ledger import Item, item_ledger, put

async def writer(ledger, name, until):
    kept, slowest = [], 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        kept.append(await ledger.commit(put, Item(id=f"{name}.{len(kept):06}", body=b"x" * 200)))
        slowest = max(slowest, time.monotonic() - began)
    return kept, slowest

async def main(path, name, seconds):
    async with item_ledger(Path(path)) as ledger:
        until = time.monotonic() + seconds
        done = await asyncio.gather(*(writer(ledger, f"{name}{n}", until) for n in range(8)))
        print(json.dumps([[id for kept, _ in done for id in kept], max(slow for _, slow in done)]))

asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
"""


@pytest.mark.report("U90")
async def test_eight_writers_in_each_of_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with item_ledger(path):
        pass
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    writers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            str(path),
            name,
            "3",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[4],
        )
        for name in ("a", "b")
    ]
    acknowledged: list[str] = []
    for writer in writers:
        out, errors = await writer.communicate()
        assert writer.returncode == 0, errors.decode()
        kept, slowest = json.loads(out)
        assert len(kept) > 50
        # Bounded: no writer is starved for as long as a lock may be waited for.
        assert slowest < 5.0
        acknowledged += kept
    async with item_ledger(path, create=False) as ledger:
        assert await ledger.read(ids) == sorted(acknowledged)
