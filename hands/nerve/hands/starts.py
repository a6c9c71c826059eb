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
from nerve.hands.ledger.start import ANYBODY, Lane, Start, Started, Want, start, waiting
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
        self._ready: dict[Lane, None] = {}
        self._since: set[Lane] = set()
        """Lanes into which something came after the last look."""
        self._task: asyncio.Task[None] | None = None
        self.waiting = 0
        """How many executions waited at the last look."""

    def expect(self, binding_digest: str, namespace: str) -> None:
        """Something of this binding, and this tenant, waits for a slot."""
        if binding_digest in self._bindings:
            lane = self._lane(binding_digest, namespace)
            self._ready[lane] = None
            self._since.add(lane)

    def is_expected(self, binding_digest: str, namespace: str) -> bool:
        """Whether older executions of its kind wait, so that a new one must not overtake them."""
        return self._lane(binding_digest, namespace) in self._ready

    def _lane(self, binding_digest: str, namespace: str) -> Lane:
        return Lane(binding_digest, namespace if self._engine.by_tenant else ANYBODY)

    def pull(self) -> None:
        """Start what waits, as far as there is room."""
        if self._task is None and self._ready and self._engine.free:
            self._task = asyncio.get_running_loop().create_task(self._pull(), name="pull")

    async def run_once(self) -> bool:
        """Find what waits, and what no live host can start."""
        by_tenant = self._engine.by_tenant
        found = await self._ledger.read(lambda tx: waiting(tx, by_tenant=by_tenant))
        self.waiting = sum(found.values())
        digests = dict.fromkeys(lane.binding_digest for lane in found)
        missing = [each for each in digests if each not in self._bindings]
        for lane in found:
            self.expect(lane.binding_digest, lane.namespace)
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
        taken: dict[Lane, int] = {}
        try:
            verdict = await self._ledger.commit(start, unit)
            for one in verdict.started:
                lane = self._launch(one, host.id)
                taken[lane] = taken.get(lane, 0) + 1
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

    def _launch(self, one: Started, host: str) -> Lane:
        command = open_envelope(one.command).body
        assert isinstance(command, StartCommand)
        binding = self._bindings[command.binding_digest]
        if one.attempt > 1:
            self._metrics.recoveries.add(self._metrics.route)
        self._engine.launch(command, binding, token=one.token, attempt=one.attempt, host=host)
        return self._lane(command.binding_digest, command.namespace)

    def _wants(self) -> list[Want]:
        """Reserve slots for the lanes in which something waits, each its share first."""
        self._since.clear()
        counts: dict[Lane, int] = dict.fromkeys(self._ready, 0)
        open_ones = list(counts)
        while open_ones:
            open_ones = [each for each in open_ones if self._reserve(each)]
            for each in open_ones:
                counts[each] += 1
        return [
            Want(
                lane=each,
                repeatable=self._bindings[each.binding_digest].powers.idempotent_start,
                count=count,
            )
            for each, count in counts.items()
            if count
        ]

    def _reserve(self, lane: Lane) -> bool:
        return self._engine.take(self._bindings[lane.binding_digest], lane.namespace)

    def _give_back(self, wants: Sequence[Want], taken: Mapping[Lane, int]) -> None:
        for want in wants:
            for _ in range(want.count - taken.get(want.lane, 0)):
                binding = self._bindings[want.lane.binding_digest]
                self._engine.give_back(binding, want.lane.namespace)

    def _note(self, wants: Sequence[Want], more: Mapping[Lane, bool]) -> None:
        """Whoever had a share stands last from now on: with one free slot at a time, too, all move."""
        for want in wants:
            self._ready.pop(want.lane, None)
            if more.get(want.lane, False) or want.lane in self._since:
                self._ready[want.lane] = None
