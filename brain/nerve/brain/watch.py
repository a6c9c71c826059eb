"""Waiting and watching: woken by hints, right without them, and never a cause of work."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

import orjson

from nerve.brain.ledger import queries
from nerve.brain.state.turn import TERMINAL, TurnPhase
from nerve.common.clock import Clock
from nerve.common.sql import Ledger, Row, Tx
from nerve.common.wakeups import Subscription, Wakeups
from nerve.protocol.content import Message
from nerve.protocol.errors import BadInput, Conflict, Timeout, Unavailable
from nerve.protocol.events import PublicEvent, cursor_of, sequence_of
from nerve.protocol.identity import SessionKey, ThreadKey

V = TypeVar("V")

PAGE = 200
EXPECTED_MAX = 1024
CHANNEL = "turn:"
ENDED = "ended:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """How a Turn ended. `output` stands where it COMPLETED, `failure` (code, message) where not."""

    turn: str
    thread: ThreadKey
    phase: TurnPhase
    output: Message | None
    failure: dict[str, Any] | None

    @property
    def text(self) -> str:
        """The answer as text; empty where there is none."""
        return "" if self.output is None else self.output.text


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events after a cursor. An empty filtered page still moves `cursor`; it has caught up when
    `cursor` equals `high_watermark`."""

    events: Sequence[PublicEvent]
    cursor: str
    high_watermark: str


class Watch:
    """Waiters of one process, by Turn; one listener on the bell serves them all."""

    def __init__(
        self, ledger: Ledger, wakeups: Wakeups, clock: Clock, *, scan_seconds: float
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._scan_seconds = scan_seconds
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._expected: dict[str, tuple[asyncio.Event, float]] = {}
        self._wakeups = wakeups
        self._subscriptions: dict[str, Subscription] = {}
        self._scan: asyncio.Task[None] | None = None
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for subscription in self._subscriptions.values():
            subscription.close()
        if self._scan is not None:
            self._scan.cancel()
        for events in self._waiters.values():
            for event in events:
                event.set()

    def tell(self, turn: str, *, ended: bool) -> None:
        """Something about the Turn was committed here: wake its watchers in every process.

        Whoever waits for the result hears only of the end, so that waiting costs nothing before.
        """
        channels = (f"{CHANNEL}{turn}", f"{ENDED}{turn}") if ended else (f"{CHANNEL}{turn}",)
        for channel in channels:
            self.heard(channel)
            self._wakeups.ring(channel)

    def expect(self, turn: str) -> None:
        """A Turn of this id is about to be admitted here: before a ring there is no result to look for.

        Only where results are waited for at all, and only the latest ones and for a while: whoever
        waits for another one looks at once.
        """
        if ENDED[:-1] not in self._subscriptions:
            return
        self._expected[f"{ENDED}{turn}"] = (asyncio.Event(), self._clock.monotonic())
        if len(self._expected) > EXPECTED_MAX:
            del self._expected[next(iter(self._expected))]

    def heard(self, channel: str) -> None:
        """A ring from this or another process."""
        expected = self._expected.get(channel)
        if expected is not None:
            expected[0].set()
        for event in self._waiters.get(channel, ()):
            event.set()

    async def result(self, thread: ThreadKey, turn: str, timeout: float | None) -> TurnResult:
        async def query(tx: Tx) -> TurnResult | None:
            return result_of(thread, await queries.outcome(tx, turn, thread=thread.id))

        try:
            async with asyncio.timeout(timeout):
                return await self._until(f"{ENDED}{turn}", lambda: self._ledger.read(query))
        except TimeoutError:
            raise Timeout(
                f"the Turn {turn} of {thread} did not end within {timeout:g} s; it goes on",
                where=turn,
                next_step=f"wait again, or ask `nerve why {turn}`",
                identities={"turn": turn, "thread": thread.id},
            ) from None

    async def _until(self, channel: str, look: Callable[[], Awaitable[V | None]]) -> V:
        """The first value of `look` that is not None, looking again at each ring and scan."""
        event = self._event(channel)
        self._listen(channel.partition(":")[0])
        self._waiters[channel].add(event)
        try:
            while True:
                self._keep_scanning()
                await event.wait()
                event.clear()
                if self._closed:
                    raise closed(channel)
                found = await look()
                if found is not None:
                    return found
        finally:
            self._waiters[channel].discard(event)
            if not self._waiters[channel]:
                del self._waiters[channel]

    def _event(self, channel: str) -> asyncio.Event:
        """Set, so that its owner looks before it waits, unless the channel was just begun here."""
        event, since = self._expected.pop(channel, (asyncio.Event(), -inf))
        if self._clock.monotonic() - since >= self._scan_seconds:
            event.set()
        return event

    def _listen(self, kind: str) -> None:
        """Hear only what somebody here waits for: each ring that is heard costs a process a wake."""
        if kind not in self._subscriptions:
            self._subscriptions[kind] = self._wakeups.listen(f"{kind}:*", self.heard)

    def _keep_scanning(self) -> None:
        if self._scan is None or self._scan.done():
            self._scan = asyncio.get_running_loop().create_task(self._look_again(), name="watch")

    async def _look_again(self) -> None:
        """Hints may be lost: whoever waits looks again at each scan."""
        while self._waiters:
            await self._clock.sleep(self._scan_seconds)
            for events in list(self._waiters.values()):
                for event in events:
                    event.set()

    async def page(
        self,
        key: SessionKey,
        after: str | None,
        *,
        limit: int,
        thread: str | None = None,
        turn: str | None = None,
        run: str | None = None,
    ) -> EventPage:
        """From the first one that is kept, or behind `after`.

        Raises BadInput, also where events behind `after` were pruned; UnknownSession, UnknownThread;
        Conflict where a Turn is not of the Thread.
        """
        if (turn is not None and thread is None) or (run is not None and turn is None):
            raise BadInput(
                "a Turn filter needs its Thread, and a Run filter its Turn",
                where="filter",
                next_step="name the one above too",
            )

        async def query(tx: Tx) -> EventPage:
            session = await queries.session(tx, key.id)
            if turn is not None:
                await _check_owner(tx, key, thread, turn, run)
            elif thread is not None:
                await queries.thread(tx, key.thread(thread).id)
            first = sequence_of(after) or session["pruned"]
            if first < session["pruned"]:
                raise _pruned(session["pruned"])
            rows = await queries.events(tx, key.id, after=first, limit=limit)
            wanted = [row for row in rows if _passes(row, key, thread, turn, run)]
            last = rows[-1]["sequence"] if rows else first
            return EventPage(
                events=[event_of(key, row) for row in wanted],
                cursor=cursor_of(last),
                high_watermark=cursor_of(session["sequence"]),
            )

        return await self._ledger.read(query)

    async def follow(
        self, thread: ThreadKey, turn: str, after: str | None
    ) -> AsyncIterator[PublicEvent]:
        """Events of a Turn as they are committed, until it has ended."""
        cursor = after
        while True:
            ended = await self._ended(thread, turn)
            page = await self.page(
                thread.session_key, cursor, limit=PAGE, thread=thread.thread, turn=turn
            )
            for event in page.events:
                yield event
            cursor = page.cursor
            if cursor != page.high_watermark:
                continue
            if ended:
                return
            await self._next_change(thread, turn, page.high_watermark)

    async def _ended(self, thread: ThreadKey, turn: str) -> bool:
        async def query(tx: Tx) -> bool:
            row = await queries.turn(tx, turn, thread=thread.id)
            return TurnPhase(row["phase"]) in TERMINAL

        return await self._ledger.read(query)

    async def _next_change(self, thread: ThreadKey, turn: str, seen: str) -> None:
        async def query(tx: Tx) -> bool | None:
            session = await queries.session(tx, thread.session_key.id)
            if cursor_of(session["sequence"]) != seen:
                return True
            # It may have ended between the look at its phase and the page: then nothing follows.
            phase = TurnPhase((await queries.turn(tx, turn, thread=thread.id))["phase"])
            return True if phase in TERMINAL else None

        await self._until(f"{CHANNEL}{turn}", lambda: self._ledger.read(query))


def closed(channel: str) -> Unavailable:
    return Unavailable(
        "the runtime was closed while something was waited for; it goes on where a host runs it",
        where=channel.rpartition(":")[2],
        next_step="ask again from another process, or open the runtime again",
    )


def _pruned(until: int) -> BadInput:
    return BadInput(
        f"the events up to {until} were pruned: some behind this cursor are gone",
        where="after",
        next_step="read the history, and follow from the first event that is kept: name no cursor",
    )


def _passes(
    row: Row, key: SessionKey, thread: str | None, turn: str | None, run: str | None
) -> bool:
    if thread is not None and row["thread"] != key.thread(thread).id:
        return False
    if turn is not None and row["turn"] != turn:
        return False
    return run is None or row["run"] == run


async def _check_owner(
    tx: Tx, key: SessionKey, thread: str | None, turn: str, run: str | None
) -> None:
    row = await queries.turn(tx, turn)
    assert thread is not None
    if row["thread"] != key.thread(thread).id:
        raise Conflict(
            f"the Turn {turn} does not belong to the thread {thread}",
            where="turn",
            next_step="name its own Thread",
        )
    if run is not None and not run.startswith(f"{turn}.r"):
        raise Conflict(
            f"the Run {run} does not belong to the Turn {turn}",
            where="run",
            next_step="name its own Turn",
        )


def event_of(key: SessionKey, row: Row) -> PublicEvent:
    thread = row["thread"]
    return PublicEvent(
        sequence=row["sequence"],
        type=row["type"],
        namespace=key.namespace,
        session=key.session,
        thread=None if thread is None else thread.rpartition("/")[2],
        turn=row["turn"],
        run=row["run"],
        at=row["created_at"],
        payload=orjson.loads(row["body"]),
    )


def result_of(thread: ThreadKey, row: Row) -> TurnResult | None:
    """The result of a Turn's row, or None while it is unfinished."""
    phase = TurnPhase(row["phase"])
    if phase not in TERMINAL:
        return None
    output = None if row["output"] is None else Message.model_validate_json(row["output"])
    failure = None if row["failure"] is None else orjson.loads(row["failure"])
    return TurnResult(turn=row["id"], thread=thread, phase=phase, output=output, failure=failure)
