"""The running Threads of one host: claimed within its slots, driven to their next rest, drained."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from nerve.brain.ledger.claim import Claim, Claimed, claim
from nerve.brain.ledger.step_unit import Verdict
from nerve.brain.schedule.invocation import Invocation, Office
from nerve.brain.schedule.registry import Registry
from nerve.common.logs import get_log
from nerve.common.record import record

_log = get_log("nerve.brain.scheduler")

Notify = Callable[[str, bool], None]
"""`notify(turn, ended)`: something about the Turn was committed."""


@dataclass(slots=True)
class _Running:
    invocation: Invocation
    task: asyncio.Task[None]


@record
class Reservation:
    """Slots that are kept for one transaction, and the definitions it may claim."""

    number: int
    offers: frozenset[str]


class Scheduler:
    """Claims READY Threads of the definitions it offers and runs each in a task of its own."""

    name = "claims"

    def __init__(
        self,
        office: Office,
        registry: Registry,
        *,
        slots: int,
        scan_seconds: float,
        notify: Notify,
        poke: Callable[[], None],
    ) -> None:
        self.interval_seconds = scan_seconds
        self._office = office
        self._registry = registry
        self._slots = slots
        self._notify = notify
        self._poke = poke
        self._running: dict[str, _Running] = {}
        self._numbers = count()
        self._underway: dict[int, int] = {}
        self._admitting = True
        self._idle = asyncio.Event()
        self._idle.set()

    def reserve(self, slots: int = 1) -> Reservation | None:
        """Slots for what a transaction may claim here; None where there are none.

        `end` follows once its answer is here and what it claimed was started.
        """
        if not self._admitting or self._free() < slots:
            return None
        made = Reservation(number=next(self._numbers), offers=self._registry.ids)
        self._underway[made.number] = slots
        return made

    def end(self, reservation: Reservation) -> None:
        del self._underway[reservation.number]

    @property
    def underway(self) -> frozenset[int]:
        """Transactions that may have claimed what does not run yet."""
        return frozenset(self._underway)

    def _free(self) -> int:
        return self._slots - len(self._running) - sum(self._underway.values())

    @property
    def threads(self) -> frozenset[str]:
        """What runs here."""
        return frozenset(self._running)

    async def run_once(self) -> bool:
        """Claim what is READY and fits; True where more may be waiting.

        Half of the free slots are left to deliveries, which claim in their own commit.
        """
        more = False
        for definition in self._registry.ids:
            slots = (self._free() + 1) // 2
            reservation = self.reserve(slots) if slots > 0 else None
            if reservation is None:
                return False
            try:
                claimed = await self._claim(definition, slots)
                for each in claimed:
                    self.start(each)
            finally:
                self.end(reservation)
            more = more or len(claimed) == slots
        return more

    async def _claim(self, definition: str, limit: int) -> list[Claimed]:
        unit = Claim(
            host=self._office.host,
            definition=definition,
            limit=limit,
            now=self._office.clock.now_ms(),
        )
        return await self._office.ledger.commit(claim, unit)

    def start(self, claimed: Claimed) -> None:
        """Run what this host owns by now."""
        agent = self._registry.get(claimed.definition)
        invocation = Invocation(self._office, claimed, agent)
        task = asyncio.get_running_loop().create_task(
            self._drive(invocation), name=f"turn:{claimed.turn}"
        )
        self._running[claimed.thread] = _Running(invocation, task)
        self._idle.clear()
        if claimed.first:
            self._notify(claimed.turn, False)

    def interrupt(self, turn: str) -> None:
        """Ask the Run of a Turn to stop at its next boundary."""
        for running in self._running.values():
            if running.invocation.claimed.turn == turn:
                running.invocation.host.stop = True

    def stop_admitting(self) -> None:
        self._admitting = False

    async def drain(self, seconds: float) -> bool:
        """Let what runs come to rest; what does not is handed over. True where all came to rest."""
        self._admitting = False
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
            return True
        except TimeoutError:
            await self.close()
            return False

    async def close(self) -> None:
        """Stop every Run now; their Threads go back for others."""
        self._admitting = False
        running = list(self._running.values())
        for each in running:
            each.task.cancel()
        if running:
            await asyncio.wait([each.task for each in running])
        for each in running:
            await self._give_back(each.invocation, "its host stopped")

    async def _give_back(self, invocation: Invocation, reason: str) -> None:
        """What cannot be given back now is found by a scan."""
        try:
            await invocation.hand_over(reason)
        except Exception as error:
            _log.warning("a Thread could not be handed over", cause="hand_over", error=error)

    async def _drive(self, invocation: Invocation) -> None:
        claimed = invocation.claimed
        verdict = Verdict.FENCED
        try:
            verdict = await invocation.run()
        except Exception as error:
            _log.error(
                "a Step could not be committed; the Thread is given back",
                turn=claimed.turn,
                cause="run",
                error=error,
            )
            await self._give_back(invocation, "a Step of it could not be committed")
        finally:
            running = self._running.get(claimed.thread)
            if running is not None and running.invocation is invocation:
                del self._running[claimed.thread]
            if not self._running:
                self._idle.set()
            self._notify(claimed.turn, invocation.ended)
            if verdict is Verdict.READY or len(self._running) == self._slots - 1:
                self._poke()
