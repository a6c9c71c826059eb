"""Duties that find work without any hint, one class each."""

from collections.abc import Sequence
from dataclasses import dataclass

from nerve.brain.ledger import ahead
from nerve.brain.ledger.claim import GiveBack, give_back, owned
from nerve.brain.ledger.inquiries import (
    Inquire,
    Patience,
    TellSettled,
    anything_due,
    inquire,
    tell_settled,
)
from nerve.brain.ledger.repair import stuck, wake_idle_waiters
from nerve.brain.schedule.failures import DELAY_MS_MAX
from nerve.brain.schedule.scheduler import Scheduler
from nerve.brain.tools.messages import Messages
from nerve.common.clock import Clock
from nerve.common.outbox import Relay
from nerve.common.sql import Ledger, Tx

INQUIRIES_AT_ONCE = 500
REPEATS_AT_ONCE = 2_000
REPEATS_A_SECOND = 20


class Allowance:
    """How many commands may be repeated now: a burst, as after a lost broker, and a trickle, so that
    a route which nobody serves costs no host's time and fills no queue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: float = REPEATS_AT_ONCE
        self._since = clock.monotonic()

    def left(self) -> int:
        now = self._clock.monotonic()
        self._left = min(REPEATS_AT_ONCE, self._left + (now - self._since) * REPEATS_A_SECOND)
        self._since = now
        return int(self._left)

    def take(self, count: int) -> None:
        self._left -= count


class Inquiries:
    """Repeats and asks what was not answered, and tells Hands what was applied."""

    name = "inquiries"

    def __init__(
        self,
        ledger: Ledger,
        *,
        host: str,
        messages: Messages,
        patience: Patience,
        relay: Relay,
        clock: Clock,
        scan_seconds: float,
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._host = host
        self._messages = messages
        self._patience = patience
        self._relay = relay
        self._clock = clock
        self._repeats = Allowance(clock)

    async def run_once(self) -> bool:
        now = self._clock.now_ms()
        if not await self._ledger.read(self._anything):
            return False
        inquired = await self._ledger.commit(
            inquire,
            Inquire(
                messages=self._messages,
                patience=self._patience,
                host=self._host,
                relay=self._relay,
                limit=INQUIRIES_AT_ONCE,
                now=now,
                repeats=self._repeats.left(),
            ),
        )
        self._repeats.take(inquired.repeated)
        told = await self._ledger.commit(
            tell_settled,
            TellSettled(
                messages=self._messages,
                host=self._host,
                relay=self._relay,
                limit=INQUIRIES_AT_ONCE,
                now=now,
            ),
        )
        return INQUIRIES_AT_ONCE in (inquired.due, told)

    async def _anything(self, tx: Tx) -> bool:
        return await anything_due(tx, self._clock.now_ms())


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A Thread that nobody here runs, and the transactions that may be about to tell why."""

    token: int
    underway: frozenset[int]


class Strays:
    """Threads that this host owns and does not run: a task was lost, or a claim was in doubt."""

    name = "strays"

    def __init__(
        self,
        ledger: Ledger,
        scheduler: Scheduler,
        *,
        host: str,
        clock: Clock,
        scan_seconds: float,
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._scheduler = scheduler
        self._host = host
        self._clock = clock
        self._suspects: dict[str, _Suspect] = {}

    async def run_once(self) -> bool:
        """A Thread is given back when two looks find it owned and not run, and whatever might
        have claimed it at the first look has been answered by the second."""

        async def query(tx: Tx) -> dict[str, int]:
            return await owned(tx, self._host)

        found = await self._ledger.read(query)
        underway = self._scheduler.underway
        suspects: dict[str, _Suspect] = {}
        for thread, token in found.items():
            if thread in self._scheduler.threads:
                continue
            before = self._suspects.get(thread)
            if before is None or before.token != token:
                suspects[thread] = _Suspect(token, underway)
            elif before.underway & underway:
                suspects[thread] = before
            else:
                await self._give_back(thread, token)
        self._suspects = suspects
        if await self._ledger.read(stuck):
            await self._ledger.commit(wake_idle_waiters, self._clock.now_ms())
        return False

    async def _give_back(self, thread: str, token: int) -> None:
        now = self._clock.now_ms()
        await self._ledger.commit(
            give_back,
            GiveBack(
                thread=thread,
                host=self._host,
                token=token,
                reason="its host owned it and did not run it",
                ready_at=now,
                now=now,
            ),
        )


class Clocks:
    """Due times that a clock left too far ahead when it was set back."""

    name = "clocks"

    def __init__(
        self,
        ledger: Ledger,
        *,
        definitions: Sequence[str],
        patience: Patience,
        clock: Clock,
        scan_seconds: float,
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._definitions = definitions
        self._patience = patience
        self._clock = clock

    async def run_once(self) -> bool:
        now = self._clock.now_ms()

        async def query(tx: Tx) -> ahead.Ahead | None:
            return await ahead.find(
                tx,
                definitions=self._definitions,
                delay_ms=DELAY_MS_MAX,
                latest=now + self._patience.longest_ms + ahead.TOLERANCE_MS,
                now=now,
            )

        found = await self._ledger.read(query)
        if found is not None:
            await self._ledger.commit(ahead.pull, found)
        return False
