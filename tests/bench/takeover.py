"""From SIGKILL to moving again: a Brain or Hands with a standby on the same ledger; `python -m bench.takeover`.

Turns follow each other without a pause. The one that takes longest from the kill on tells when the
standby had everything; what ran in killed Hands ends UNKNOWN, which is an answer too.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from bench import processes, shim
from bench.drive import Roles
from bench.peers.nerve_rabbitmq_peer import Peer
from bench.servers import Servers

SENDERS = 16
WARM_S, AFTER_S = 3.0, 5.0


class Load:
    """Turns in flight, each with its beginning and its end."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.spans: list[tuple[float, float]] = []
        self.over = False
        self.open = 0

    async def one(self) -> None:
        began = time.perf_counter()
        turn = uuid.uuid4().hex[: shim.MARK_ID]
        try:
            async with asyncio.timeout(30):
                await self._peer.turn(turn, lambda _: None)
        except TimeoutError:
            self.open += (
                1  # its tool ran in what was killed: UNKNOWN, until a person says what it did
            )
        else:
            self.spans.append((began, time.perf_counter()))

    async def sender(self) -> None:
        while not self.over:
            await self.one()

    def after(self, moment: float) -> list[float]:
        """Seconds from then to the ends of those that were in flight."""
        return [end - moment for began, end in self.spans if began < moment < end]


async def killed(role: str, place: Path) -> dict[str, Any]:
    peer = Peer(place)
    peer.prepare()
    roles = Roles(peer)
    try:
        await peer.connect()
        load = Load(peer)
        sending = asyncio.gather(*(load.sender() for _ in range(SENDERS)))
        await asyncio.sleep(WARM_S)
        moment = time.perf_counter()
        roles.kill(role)
        await asyncio.sleep(AFTER_S)
        load.over = True
        await sending
        usual = statistics.median(end - began for began, end in load.spans if end < moment)
        late = load.after(moment)
        await peer.close()
    finally:
        roles.stop()
    return {
        "killed": role,
        "in_flight": len(late),
        "unknown": load.open,
        "usual_s": round(usual, 3),
        "median_after_s": round(statistics.median(late), 3),
        "last_after_s": round(max(late), 3),
        "load": processes.load(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    os.environ |= {"BENCH_BRAIN_COUNT": "2", "BENCH_HANDS_COUNT": "2"}
    servers = Servers()
    try:
        servers.require(["postgres", "rabbitmq"])
        for _ in range(asked.rounds):
            for role in ("brain", "hands"):
                os.environ.update(servers.fresh(["postgres", "rabbitmq"]))
                with tempfile.TemporaryDirectory(prefix="bench-takeover-") as place:
                    os.environ["BENCH_EFFECT_FILE"] = f"{place}/effects.txt"
                    print(json.dumps(asyncio.run(killed(role, Path(place)))), flush=True)
    finally:
        servers.drop()


if __name__ == "__main__":
    main()
