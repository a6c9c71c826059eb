"""Work that waits in the ledger: takes it when a slot is free, and ends what nobody can ever start."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import final

from nerve.common.clock import Clock
from nerve.common.logs import get_log
from nerve.common.sql import Ledger
from nerve.hands.engine import Engine
from nerve.hands.ledger.missing import Missing, fail_missing
from nerve.hands.ledger.reports import Speaker
from nerve.hands.ledger.start import Start, Started, Want, start, waiting
from nerve.hands.metrics import HandsMetrics
from nerve.protocol.binding import ToolBinding
from nerve.protocol.commands import StartCommand
from nerve.protocol.envelope import open_envelope

_log = get_log("nerve.hands.starts")


@final
class Starts:
    """Admitted executions of nobody, and those that a lost host may have begun and that may repeat."""

    name = "starts"

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        bindings: Sequence[ToolBinding],
        speaker: Speaker,
        *,
        clock: Clock,
        metrics: HandsMetrics,
        missing_seconds: float,
        scan_seconds: float,
        started: Callable[[Sequence[str]], object],
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._engine = engine
        self._bindings = {binding.digest: binding for binding in bindings}
        self._speaker = speaker
        self._clock = clock
        self._metrics = metrics
        self._missing_ms = int(missing_seconds * 1000)
        self._started = started
        self._ready: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0
        """How many executions waited at the last look."""

    def expect(self, binding_digest: str) -> None:
        """Something of this binding waits for a slot."""
        if binding_digest in self._bindings:
            self._ready[binding_digest] = None

    def is_expected(self, binding_digest: str) -> bool:
        """Whether older executions of the binding wait, so that a new one must not overtake them."""
        return binding_digest in self._ready

    def pull(self) -> None:
        """Start what waits, as far as there is room."""
        if self._task is None and self._ready and self._engine.free:
            self._task = asyncio.get_running_loop().create_task(self._pull(), name="pull")

    async def run_once(self) -> bool:
        """Find what waits, and what no live host can start."""
        rows = await self._ledger.read(waiting)
        self.waiting = sum(row["number"] for row in rows)
        missing = [row["binding_digest"] for row in rows]
        missing = [each for each in missing if each not in self._bindings]
        for row in rows:
            self.expect(row["binding_digest"])
        self.pull()
        if missing:
            unit = Missing(
                binding_digests=missing,
                missing_ms=self._missing_ms,
                speaker=self._speaker,
                now=self._clock.now_ms(),
            )
            await self._ledger.commit(fail_missing, unit)
        return False

    async def drain(self) -> None:
        """Wait for a start that is under way: what it commits must also be launched."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _pull(self) -> None:
        try:
            while wants := self._wants():
                if not await self._take(wants):
                    return
        finally:
            self._task = None

    async def _take(self, wants: Sequence[Want]) -> bool:
        host = self._engine.host
        assert host is not None
        unit = Start(host=host.id, wants=wants, speaker=self._speaker, now=self._clock.now_ms())
        taken: dict[str, int] = {}
        try:
            verdict = await self._ledger.commit(start, unit)
            for one in verdict.started:
                binding_digest = self._launch(one, host.id)
                taken[binding_digest] = taken.get(binding_digest, 0) + 1
            self.waiting = max(0, self.waiting - len(verdict.started))
            self._note(wants, verdict.more)
            self._started([one.id for one in verdict.started])
            # Where nothing waited for these tools they are expected no more, and others have their turn.
            return bool(verdict.started) or not any(verdict.more.values())
        except Exception as error:
            # What was committed and not launched is found among what this host owns.
            _log.warning("could not start what waits", cause="pull", error=error)
            return False
        finally:
            self._give_back(wants, taken)

    def _launch(self, one: Started, host: str) -> str:
        command = open_envelope(one.command).body
        assert isinstance(command, StartCommand)
        binding = self._bindings[command.binding_digest]
        if one.attempt > 1:
            self._metrics.recoveries.add(self._metrics.route)
        self._engine.launch(command, binding, token=one.token, attempt=one.attempt, host=host)
        return command.binding_digest

    def _wants(self) -> list[Want]:
        """Reserve slots for the bindings of which something waits, each its share first."""
        counts: dict[str, int] = dict.fromkeys(self._ready, 0)
        open_ones = list(counts)
        while open_ones:
            open_ones = [each for each in open_ones if self._engine.take(self._bindings[each])]
            for each in open_ones:
                counts[each] += 1
        return [
            Want(
                binding_digest=each,
                repeatable=self._bindings[each].powers.idempotent_start,
                count=count,
            )
            for each, count in counts.items()
            if count
        ]

    def _give_back(self, wants: Sequence[Want], taken: Mapping[str, int]) -> None:
        for want in wants:
            for _ in range(want.count - taken.get(want.binding_digest, 0)):
                self._engine.give_back(self._bindings[want.binding_digest])

    def _note(self, wants: Sequence[Want], more: Mapping[str, bool]) -> None:
        for want in wants:
            if not more.get(want.binding_digest, False):
                self._ready.pop(want.binding_digest, None)
