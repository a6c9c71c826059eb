"""A full disk stops admission, loses nothing that was acknowledged, and is over when it is over."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from nerve.common.sql import SqliteLedger
from nerve.protocol.errors import DiskFull
from support.item_ledger import Item, ids, item_ledger, put

# Before Python had its own: a write beyond the limit answers EFBIG, and the signal is ignored.
LIMITED = """
import asyncio, resource, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.item_ledger import Item, ids, item_ledger, put
from nerve.protocol.errors import DiskFull

async def main():
    async with item_ledger(Path(sys.argv[1])) as ledger:
        await ledger.commit(put, Item(id="first"))
        kept, full = ["first"], 0
        for n in range(400):
            if n == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            try:
                kept.append(await ledger.commit(put, Item(id=f"{n:03}", body=b"x" * 5000)))
            except DiskFull:
                full += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        kept.append(await ledger.commit(put, Item(id="last", body=b"x" * 5000)))
        assert full > 10, full
        assert await ledger.read(ids) == sorted(kept)
        print(len(kept), full)

asyncio.run(main())
"""


def limit(ledger: SqliteLedger, pages: int) -> None:
    connection = ledger._committer._connection  # pyright: ignore[reportPrivateUsage]
    connection.execute(f"pragma max_page_count = {pages}")


async def test_admission_stops_and_goes_on_again(tmp_path: Path) -> None:
    async with item_ledger(tmp_path / "t.db") as ledger:
        await ledger.commit(put, Item(id="before"))
        limit(ledger, 60)
        futures = [ledger.submit(put, Item(id=f"{n:03}", body=b"x" * 5000)) for n in range(100)]
        verdicts = await asyncio.gather(*futures, return_exceptions=True)
        kept = [verdict for verdict in verdicts if isinstance(verdict, str)]
        refused = [verdict for verdict in verdicts if not isinstance(verdict, str)]
        assert kept and refused
        assert all(isinstance(verdict, DiskFull) for verdict in refused)
        assert await ledger.read(ids) == sorted([*kept, "before"])
        limit(ledger, 100_000)
        assert await ledger.commit(put, Item(id="after", body=b"x" * 5000)) == "after"
    async with item_ledger(tmp_path / "t.db", create=False) as again:
        assert await again.read(ids) == sorted([*kept, "before", "after"])


async def test_the_error_names_the_file_and_the_way_on(tmp_path: Path) -> None:
    async with item_ledger(tmp_path / "t.db") as ledger:
        limit(ledger, 1)
        with pytest.raises(DiskFull, match="free space; nothing acknowledged is lost"):
            await ledger.commit(put, Item(id="big", body=b"x" * 100_000))


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE as Linux has it")
def test_a_write_that_the_system_refuses_is_a_full_disk(tmp_path: Path) -> None:
    script = tmp_path / "limited.py"
    script.write_text(LIMITED)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "t.db")],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=Path(__file__).parents[4],
        check=False,
    )
    assert done.returncode == 0, done.stderr
