"""The scan that tries held envelopes again, with growing pauses, and sets aside what never succeeds.

A try is counted before it is made. Where it told nothing about the envelope (a store out of reach, a gap
that is not closed yet) it is not counted in the end.
"""

from collections.abc import Awaitable, Callable
from typing import final

from nerve.common import inbox
from nerve.common.clock import Clock
from nerve.common.inbox import Hold, Try
from nerve.common.logs import get_log
from nerve.common.sql import Ledger, Row
from nerve.protocol.envelope import Envelope
from nerve.protocol.errors import NerveError, Unavailable

_log = get_log("nerve.common.held")

ROWS = 32
FIRST_MS = 500
MOST_MS = 60_000

Handle = Callable[[bytes], Awaitable[bool]]
"""Take in an envelope that was held. False: it has to wait on, through no fault of its own."""


@final
class Held:
    """`given_up(execution, reason)` is called when an envelope was quarantined."""

    name = "held"

    def __init__(
        self,
        ledger: Ledger,
        handle: Handle,
        *,
        clock: Clock,
        tries_max: int,
        scan_seconds: float,
        given_up: Callable[[bytes, str], Awaitable[None]],
    ) -> None:
        self.interval_seconds = scan_seconds
        self._ledger = ledger
        self._handle = handle
        self._clock = clock
        self._tries_max = tries_max
        self._given_up = given_up

    async def run_once(self) -> bool:
        """Try what is due; True where more may be."""
        now = self._clock.now_ms()
        rows = await self._ledger.read(lambda tx: inbox.due(tx, now=now, limit=ROWS))
        for row in rows:
            if row["tries"] >= self._tries_max:
                # Counted before each try, so it also ends here where every try killed its host.
                await self._give_up(row, row["reason"])
            elif not await self._try(row):
                return False
        return len(rows) == ROWS

    async def _try(self, row: Row) -> bool:
        """False where what is needed is out of reach: no other one would fare better now."""
        next_at = self._clock.now_ms() + pause_ms(row["tries"])
        mine = await self._ledger.commit(inbox.begin_try, self._unit(row, next_at=next_at))
        if not mine:
            return True
        try:
            taken = await self._handle(row["envelope"])
        except Unavailable as error:
            await self._ledger.commit(inbox.uncount, self._unit(row, reason=str(error)))
            _log.warning("a held message waits on", cause="held", error=error)
            return False
        except NerveError as error:
            if row["tries"] + 1 >= self._tries_max:
                await self._give_up(row, str(error))
            return True
        if taken:
            await self._ledger.commit(inbox.done, self._unit(row))
        else:
            await self._ledger.commit(inbox.uncount, self._unit(row, reason=row["reason"]))
        return True

    async def _give_up(self, row: Row, reason: str) -> None:
        _log.error(
            "a message was quarantined",
            cause="quarantine",
            execution=row["execution"],
            reason=reason,
        )
        await self._ledger.commit(inbox.give_up, self._unit(row, reason=reason))
        await self._given_up(row["envelope"], reason)

    def _unit(self, row: Row, *, next_at: int = 0, reason: str = "") -> Try:
        return Try(
            execution=row["execution"],
            sequence=row["sequence"],
            tries=row["tries"],
            next_at=next_at,
            reason=reason,
        )


async def hold_back(
    ledger: Ledger, envelope: Envelope, reason: str, *, sequence: int, clock: Clock
) -> None:
    """Keep an envelope that lacks something, to be tried again soon."""
    now = clock.now_ms()
    unit = Hold(
        execution=envelope.execution,
        sequence=sequence,
        envelope=envelope.raw,
        reason=reason,
        next_at=now + pause_ms(0),
        now=now,
    )
    await ledger.commit(inbox.keep_back, unit)


def pause_ms(tries: int) -> int:
    """How long after its `tries`-th try an envelope is left alone."""
    return min(MOST_MS, FIRST_MS << min(tries, 16))
