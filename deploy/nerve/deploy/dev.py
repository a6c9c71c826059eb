"""`nerve dev`: Brain and Hands in one process, new code taken in when files change, and none lost."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, final

from nerve.brain.execution import mismatch
from nerve.brain.ledger.definitions import Offer, offer
from nerve.brain.schedule.registry import frozen
from nerve.brain.why import Reason
from nerve.common import logs
from nerve.common.settings import Settings
from nerve.deploy.app import App, load
from nerve.deploy.host import Host, local_host
from nerve.deploy.metrics import Scrapes
from nerve.deploy.narrate import Narrator
from nerve.deploy.output import Console, mismatch_lines
from nerve.deploy.serving import DONE, REMIND_SECONDS, finish, named, ready
from nerve.deploy.stop import Stop
from nerve.protocol.errors import BindingMismatch, NerveError

LOOK_SECONDS = 0.25
STILL_WAITING = 5
_FOR_EVER = 1e9

Signature = Mapping[Path, tuple[int, int] | None]


async def run_dev(
    file: Path,
    directory: Path,
    *,
    console: Console,
    settings: Settings,
    fresh: bool = False,
    once: bool = False,
    metrics: str | None = None,
) -> int:
    """Serve until asked to stop; with `once` until no Turn can move any more."""
    logs.configure(level=settings.log_level, json_lines=settings.log_json or console.json_lines)
    app = load(file)
    app.need_agents()
    with (
        Stop.catching() as stop,
        Scrapes.serving(metrics, stall_seconds=settings.stall_seconds) as scrapes,
    ):
        while True:
            async with local_host(
                app.agents, app.catalog(), directory, settings=settings, fresh=fresh
            ) as host:
                scrapes.show(host)
                _up(console, app, host, scrapes.address)
                narrator = Narrator(host, console)
                try:
                    serving = _Serving(app, host, console, stop, fresh=fresh)
                    found = await (serving.until_done() if once else serving.until_changed())
                    if not isinstance(found, App):
                        left = await finish(stop, host, console, settings.drain_seconds)
                        return left or found
                    if not await serving.rested():
                        return await finish(stop, host, console, settings.drain_seconds)
                finally:
                    await narrator.close()
            app = found
            console.say("reloaded", f"Reloaded {app.path.name}.", file=app.path)


def _up(console: Console, app: App, host: Host, metrics: str | None) -> None:
    tools = ", ".join(each.name for each in app.catalog())
    what = f"{named(app.agents)}" + (f" with {tools}" if tools else "")
    ready(console, host, "dev", f"One process for {what}", metrics)
    missing = {binding.route for agent in app.agents for binding in agent.bindings.values()} - {
        "local",
        *host.workers,
    }
    for route in sorted(missing):
        console.say(
            "no_hands",
            f"{app.path.name} has no functions for the route {route}: tools that go there wait.",
            route=route,
        )


@final
class _Serving:
    """One loaded app on its host, until something else should run."""

    def __init__(self, app: App, host: Host, console: Console, stop: Stop, *, fresh: bool) -> None:
        self._app = app
        self._host = host
        self._console = console
        self._stop = stop
        self._fresh = fresh
        self._told = ""

    async def until_changed(self) -> App | int:
        """The next app that can take over, or an exit code when asked to stop."""
        await self._tell_stranded()
        seen = signature(self._app)
        waiting: App | None = None
        while not await _set_within(self._stop.asked, LOOK_SECONDS):
            now = signature(self._app)
            if now != seen:
                await _settled(self._app)
                seen = signature(self._app)
                self._told = ""
                waiting = self._loaded()
            if waiting is not None and await self._admissible(waiting):
                return waiting
        return DONE

    async def until_done(self) -> int:
        """Until every Turn has ended, or waits for what nobody here will do."""
        runtime = self._host.runtime
        assert runtime is not None
        moving = {Reason.RUNNING, Reason.ABOUT_TO_RUN, Reason.TOOLS, Reason.BACKOFF}
        while not await _set_within(self._stop.asked, LOOK_SECONDS):
            open_turns = await runtime.list_turns(unfinished=True, limit=1000)
            if not open_turns:
                return DONE
            reasons = [
                (await (await runtime.get_turn(each.turn)).status()).reasons for each in open_turns
            ]
            if not any(moving.intersection(each) for each in reasons):
                text = f"{len(open_turns)} Turn(s) wait; `nerve why TURN` says for what."
                self._console.say("waiting", text, turns=[each.turn for each in open_turns])
                return STILL_WAITING
        return DONE

    async def rested(self) -> bool:
        """Wait until nothing runs, saying what is waited for; False when asked to stop meanwhile."""
        drain = asyncio.ensure_future(self._host.drain(_FOR_EVER))
        asked = asyncio.ensure_future(self._stop.asked.wait())
        told: list[str] = []
        try:
            seconds = 0.2
            while not drain.done() and not asked.done():
                await asyncio.wait(
                    [drain, asked], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                tools = self._host.running_tools()
                if tools and tools != told and not drain.done():
                    told = tools
                    text = f"The new code waits until {', '.join(tools)} has ended; Ctrl-C stops."
                    self._console.say("draining", text, tools=tools)
                seconds = REMIND_SECONDS
            return drain.done() and not asked.done()
        finally:
            asked.cancel()
            if not drain.done():
                drain.cancel()

    def _loaded(self) -> App | None:
        try:
            app = load(self._app.path)
            app.need_agents()
            app.catalog()
            return app
        except NerveError as error:
            self._keep_old(error.code, str(error), error.details)
            return None

    async def _admissible(self, app: App) -> bool:
        """Register the new definitions; where unfinished Turns hold other ones, say so and wait."""
        assert self._host.backend is not None
        for agent in app.agents:
            changed = await self._host.backend.ledger.commit(
                offer,
                Offer(
                    definition=agent.definition,
                    bindings=frozen(agent),
                    now=self._host.clock.now_ms(),
                    fresh=self._fresh,
                ),
            )
            if changed is not None:
                error = mismatch(changed)
                self._keep_old(error.code, refusal(error), error.details)
                return False
        return True

    def _keep_old(self, code: str, text: str, details: Mapping[str, Any]) -> None:
        if text != self._told:
            self._told = text
            self._console.say(
                "kept", f"{text.rstrip('.')}.\nThe old code goes on.", code=code, details=details
            )

    async def _tell_stranded(self) -> None:
        """Name unfinished Turns whose exact agent version this file does not have any more."""
        runtime = self._host.runtime
        assert runtime is not None
        stranded: dict[str, list[str]] = {}
        for item in await runtime.list_turns(unfinished=True, limit=100):
            status = await (await runtime.get_turn(item.turn)).status()
            if Reason.NO_HOST in status.reasons:
                stranded.setdefault(f"{status.agent} {status.version}", []).append(item.turn)
        for agent, turns in stranded.items():
            self._console.say(
                "stranded",
                f"{len(turns)} unfinished Turn(s) hold {agent}, which {self._app.path.name} does"
                f" not have ({', '.join(turns[:3])}): keep that version beside the new one until"
                " they have ended, or cancel them.",
                agent=agent,
                turns=turns,
            )


def refusal(error: BindingMismatch) -> str:
    """The mismatch with the old and the new schema of each tool, and the two ways on."""
    return "\n".join([str(error), *mismatch_lines(error.details)])


def signature(app: App) -> Signature:
    """When each file that matters was last written; None where it is missing."""
    found: dict[Path, tuple[int, int] | None] = {}
    for path in {*app.files, *_beside(app.path.parent)}:
        try:
            stat = path.stat()
        except OSError:
            found[path] = None
        else:
            found[path] = (stat.st_mtime_ns, stat.st_size)
    return found


def _beside(folder: Path) -> Iterable[Path]:
    return folder.glob("*.py")


async def _settled(app: App) -> None:
    """Editors write in several steps: wait until the files stand still and the app is there."""
    seen = signature(app)
    for _ in range(20):
        await asyncio.sleep(0.1)
        now = signature(app)
        if now == seen and app.path.exists():
            return
        seen = now


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return event.is_set()
