"""A Brain and Hands as processes, a broker between them, Turns that are submitted through a fault, and what came of them.

What ran is read from a file that the tool itself wrote, outside every ledger.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nerve.brain import DurableRuntime
from nerve.brain.handles import Turn
from nerve.brain.ledger.backend import LocalBackend
from nerve.brain.watch import TurnResult
from nerve.protocol.errors import Timeout
from nerve.protocol.identity import SessionKey, new_uuid7
from support.terminal import Running, Terminal

TABLE = Path(__file__).parents[2] / "build" / "faults.jsonl"
START_SECONDS = 90.0
SUBMIT_SECONDS_MAX = 5.0
"""A submit is one commit of a file; the machine may be shared with many other tests."""

APP = '''\
import asyncio
import os
import time
from pathlib import Path

from nerve.brain.agents.models import ModelAnswer, ModelCall
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.protocol.catalog import Catalog

tools = Catalog(route="hands")
EFFECTS = str(Path(__file__).parent / "effects")


@tools.tool
async def mark(name: str, seconds: float) -> str:
    """Leaves a line outside after a while."""
    await asyncio.sleep(seconds)
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{name} {time.monotonic():.3f}\\n".encode())
    os.close(file)
    return "marked"


def script(request):
    last = request.messages[-1]
    if isinstance(last, dict) and last["role"] == "user":
        name, _, seconds = last["text"].partition(" ")
        return ModelAnswer(
            calls=[ModelCall(tool="mark", arguments={"name": name, "seconds": float(seconds)})]
        )
    return "final"


agent = ReactAgent("marker", version="1", model=ScriptedModel(script), tools=tools)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One line of the fault table."""

    fault: str
    turns: int
    lost: int
    doubled: int
    fault_seconds: float
    ran_in_its_second_half: int
    """Whether the fault was felt: tools that ran while it had lasted for a while."""
    moving_again_seconds: float
    """From the end of the fault to the next effect."""
    all_ended_seconds: float
    """From there to the end of the last Turn."""
    slowest_submit_seconds: float


class Field:
    """The processes of one folder."""

    def __init__(self, folder: Path, address: str, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "app.py").write_text(APP)
        self.folder = folder
        self.terminal = Terminal(folder, {"NERVE_BROKER": address, **environment})
        self.hosts: dict[str, Running] = {}
        self.started: list[Running] = []
        self._submits: list[float] = []

    def start(self, role: str) -> None:
        self.hosts[role] = self.terminal.start(role, "app.py", "--json")
        self.started.append(self.hosts[role])
        self.hosts[role].event("ready", seconds=START_SECONDS)

    def close(self) -> None:
        self.terminal.close()

    def marks(self) -> list[tuple[str, float]]:
        path = self.folder / "effects"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, float(at)) for name, at in (line.split() for line in lines)]

    @property
    def text(self) -> str:
        """Everything that the hosts have printed."""
        return "\n".join(host.text for host in self.started)

    async def submit(self, runtime: DurableRuntime, name: str, seconds: float = 0.0) -> Turn:
        began = time.monotonic()
        turn = await runtime.submit(
            SessionKey("acme", name), "r", f"{name} {seconds}", agent="marker"
        )
        self._submits.append(time.monotonic() - began)
        return turn

    async def play(
        self,
        name: str,
        fault: Callable[[], Awaitable[object]],
        *,
        seconds: float = 0.0,
        before: int = 5,
        after: int = 5,
        within: float = 60.0,
    ) -> Outcome:
        """Submit before, all through and after the fault; every Turn must end and no tool run twice."""
        run = new_uuid7(int(time.time() * 1000))[-6:]
        self._submits.clear()
        async with AsyncExitStack() as stack:
            backend = await stack.enter_async_context(
                LocalBackend.open(self.folder / ".nerve", create=False)
            )
            runtime = await stack.enter_async_context(DurableRuntime(backend))
            turns: list[Turn] = []

            async def ask(part: str, number: int) -> None:
                turns.append(await self.submit(runtime, f"{run}{part}{number}", seconds))

            for number in range(before):
                await ask("before", number)
            began = time.monotonic()
            breaking = asyncio.ensure_future(fault())
            number = 0
            while not breaking.done():
                await ask("during", number)
                number += 1
                await asyncio.wait([breaking], timeout=0.2)
            await breaking
            ended = time.monotonic()
            for number in range(after):
                await ask("after", number)
            results = await self._results(turns, within)
            rested = time.monotonic()
        assert [] == [each.failure for each in results if each.phase != "COMPLETED"]
        marks = [(each, at) for each, at in self.marks() if each.startswith(run)]
        counts = Counter(each for each, _ in marks)
        later = [at for _, at in marks if at > ended]
        half = began + (ended - began) / 2
        return Outcome(
            fault=name,
            turns=len(turns),
            lost=len(turns) - len(counts),
            doubled=sum(count - 1 for count in counts.values()),
            fault_seconds=round(ended - began, 2),
            ran_in_its_second_half=sum(half < at < ended for _, at in marks),
            moving_again_seconds=round(min(later) - ended, 2) if later else 0.0,
            all_ended_seconds=round(rested - ended, 2),
            slowest_submit_seconds=round(max(self._submits), 2),
        )

    async def _results(self, turns: Sequence[Turn], within: float) -> list[TurnResult]:
        """How each ended; what has not is told with its reason."""
        try:
            async with asyncio.timeout(within):
                return await asyncio.gather(*(turn.result(within) for turn in turns))
        except (TimeoutError, Timeout):
            states = [await turn.status() for turn in turns]
            left = [each for each in states if each.phase not in ("COMPLETED", "FAILED")]
            tail = "\n".join(self.text.splitlines()[-40:])
            raise AssertionError(f"within {within:g} s: {left}\n{tail}") from None


def judge(outcome: Outcome, *, moving: float) -> None:
    """Nothing lost, nothing doubled, nobody waited to submit, and it moves again within `moving` seconds."""
    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("a") as file:
        file.write(json.dumps(asdict(outcome)) + "\n")
    assert (0, 0) == (outcome.lost, outcome.doubled), outcome
    assert outcome.slowest_submit_seconds < SUBMIT_SECONDS_MAX, outcome
    assert outcome.moving_again_seconds < moving, outcome


def floods(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Causes that were told more often than once a second."""
    told: dict[tuple[str, str, str], float] = {}
    for line in lines:
        if "logger" not in line:
            continue
        cause = (line["logger"], line["message"], str(line.get("cause", "")))
        at = datetime.fromisoformat(line["at"]).timestamp()
        if at - told.get(cause, 0.0) < 0.99:
            yield f"{cause} at {line['at']}"
        told[cause] = at
