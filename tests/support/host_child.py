"""A process that is a host of an item ledger: it registers, says so, and does what it is told.

    python -m support.host_child LEDGER LOCKS LEASE HEARTBEAT

It writes `live <id>`, then `alive <bool>` for each line `alive`, `put <id>` for a committed item,
`lost` when it was released, and `bye` after a close.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nerve.common.clock import SystemClock
from nerve.common.lease import Hosts
from nerve.common.liveness import FileLiveness
from nerve.common.settings import Settings
from nerve.common.sql import SqliteLedger, Tx
from support.item_ledger import Item, item_ledger, put

ROOT = Path(__file__).parents[2]


async def nothing(tx: Tx, host: str, now: int) -> None:
    """A room that owns nothing."""


def hosts(
    ledger: SqliteLedger, locks: Path, *, lease: float, heartbeat: float, sweep: float = 0.05
) -> Hosts:
    settings = Settings(lease_seconds=lease, heartbeat_seconds=heartbeat, sweep_seconds=sweep)
    return Hosts(
        ledger,
        FileLiveness(locks, ledger.path),
        role="test",
        clock=SystemClock(),
        settings=settings,
        also=nothing,
    )


async def main(path: str, locks: str, lease: str, heartbeat: str) -> None:
    async with item_ledger(Path(path), create=False) as ledger:
        here = hosts(ledger, Path(locks), lease=float(lease), heartbeat=float(heartbeat))
        host = await here.register({})
        host.on_lost.append(lambda: say("lost"))
        say(f"live {host.id}")
        while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
            match word.split():
                case ["alive"]:
                    say(f"alive {host.alive()}")
                case ["put", id]:
                    written = await ledger.commit(put, Item(id=id))
                    say(f"put {written}")
                case _:
                    break
        await here.close()
        say("bye")


def say(text: str) -> None:
    print(text, flush=True)


@dataclass
class Child:
    """A running host as its parent sees it."""

    process: asyncio.subprocess.Process
    id: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def line(self, seconds: float = 20.0) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(seconds):
            return (await self.process.stdout.readline()).decode().strip()

    async def ask(self, line: str) -> str:
        self.tell(line)
        return await self.line()


@asynccontextmanager
async def host_child(
    path: Path, locks: Path, *, lease: float, heartbeat: float, faults: str = ""
) -> AsyncGenerator[Child, None]:
    """Killed at the end whatever became of it."""
    locks.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.host_child", str(path), str(locks)),
        *(str(lease), str(heartbeat)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT / "tests",
        env={"PATH": "/usr/bin:/bin", "NERVE_FAULTS": faults},
    )
    child = Child(process, "")
    try:
        live, _, child.id = (await child.line()).partition(" ")
        assert live == "live"
        yield child
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
