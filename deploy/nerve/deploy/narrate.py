"""What the Turns of this process do, as lines for the person who develops them."""

import asyncio
from typing import final

from nerve.brain.runtime import DurableRuntime
from nerve.deploy.host import Host
from nerve.deploy.output import Console, clock_time
from nerve.deploy.watching import event_fields, sentence
from nerve.protocol.errors import NerveError
from nerve.protocol.identity import SessionKey

GATHER_SECONDS = 0.05


@final
class Narrator:
    """Listens for Turns that changed and prints their new events."""

    def __init__(self, host: Host, console: Console) -> None:
        assert host.backend is not None and host.runtime is not None
        self._runtime: DurableRuntime = host.runtime
        self._console = console
        self._since = host.clock.now_ms()
        self._cursors: dict[SessionKey, str] = {}
        self._changed: set[str] = set()
        self._bell = asyncio.Event()
        self._listening = host.backend.wakeups.listen("turn:*", self._hear)
        self._task = asyncio.ensure_future(self._tell())

    async def close(self) -> None:
        self._listening.close()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _hear(self, channel: str) -> None:
        self._changed.add(channel.partition(":")[2])
        self._bell.set()

    async def _tell(self) -> None:
        while True:
            await self._bell.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._bell.clear()
            turns, self._changed = self._changed, set()
            try:
                keys = {(await self._runtime.get_turn(turn)).thread.session_key for turn in turns}
                for key in sorted(keys):
                    await self._session(key)
            except NerveError:
                continue  # Best effort: the ledger tells the rest when it is asked.

    async def _session(self, key: SessionKey) -> None:
        while True:
            page = await self._runtime.watch.page(key, self._cursors.get(key), limit=500)
            for event in page.events:
                told = sentence(event)
                if event.at >= self._since and (told or self._console.json_lines):
                    text = f"{clock_time(event.at)}  {event.turn or key}  {told}"
                    self._console.say("event", text, **event_fields(event))
            self._cursors[key] = page.cursor
            if page.cursor == page.high_watermark:
                return
