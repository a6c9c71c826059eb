"""Run one host until it is asked to stop: tell what happens, drain, and say what was left."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from nerve.brain.harness import Harness
from nerve.common import logs
from nerve.common.settings import Settings
from nerve.deploy.app import App
from nerve.deploy.host import Host, brain_host, hands_host
from nerve.deploy.metrics import Scrapes
from nerve.deploy.output import Console
from nerve.deploy.stop import Stop

DONE = 0
LEFT_UNKNOWN = 5
REMIND_SECONDS = 2.0
COLLECT_AFTER_OBJECTS = 20_000

Opening = Callable[[], AbstractAsyncContextManager[Host]]


async def run_brain(
    app: App,
    directory: Path,
    *,
    console: Console,
    settings: Settings,
    metrics: str | None = None,
    fresh: bool = False,
) -> int:
    """Be a Brain for the agents of `app` until SIGTERM or Ctrl-C."""
    agents = app.need_agents()

    def opened() -> AbstractAsyncContextManager[Host]:
        return brain_host(agents, directory, settings=settings, fresh=fresh)

    return await serve(
        opened,
        console=console,
        settings=settings,
        metrics=metrics,
        role="brain",
        what=f"Brain with {named(agents)}",
    )


async def run_hands(
    app: App,
    directory: Path,
    *,
    console: Console,
    settings: Settings,
    route: str | None = None,
    slots: int | None = None,
    metrics: str | None = None,
) -> int:
    """Be Hands for one route of `app` until SIGTERM or Ctrl-C."""
    route = route or app.only_route()
    catalog = app.catalog(route)
    tools = ", ".join(each.name for each in catalog.bindings(route))

    def opened() -> AbstractAsyncContextManager[Host]:
        return hands_host(catalog, directory, route=route, slots=slots, settings=settings)

    return await serve(
        opened,
        console=console,
        settings=settings,
        metrics=metrics,
        role="hands",
        what=f"Hands for the route {route} with {tools}",
    )


async def serve(
    opened: Opening,
    *,
    console: Console,
    settings: Settings,
    metrics: str | None,
    role: str,
    what: str,
) -> int:
    """Open a host, say that it is up, wait to be asked, stop."""
    logs.configure(
        level=settings.log_level,
        json_lines=settings.log_json or console.json_lines,
        others=True,
    )
    with (
        Stop.catching() as stop,
        Scrapes.serving(metrics, stall_seconds=settings.stall_seconds) as scrapes,
    ):
        async with opened() as host:
            scrapes.show(host)
            ready(console, host, role, what, scrapes.address)
            spare_collector()
            await stop.asked.wait()
            return await finish(stop, host, console, settings.drain_seconds)


def spare_collector() -> None:
    """What is loaded by now lives as long as the process; the rest is mostly freed by counting.

    With Python's own threshold a tenth of a busy host's time went into looking for cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 20, 20)


def ready(console: Console, host: Host, role: str, what: str, metrics: str | None) -> None:
    """The one line that says a host is up: nothing is asked of it before."""
    text = f"{what} is up on {host.directory.path} (pid {os.getpid()})."
    if metrics is not None:
        text += f" Metrics: http://{metrics}/metrics"
    console.say(
        "ready",
        text,
        role=role,
        pid=os.getpid(),
        directory=host.directory.path,
        hosts=incarnations(host),
        metrics=metrics,
    )


def incarnations(host: Host) -> list[str]:
    """The ids under which this process owns work."""
    found = [worker.host.id for worker in host.workers.values()]
    if host.runtime is not None and host.runtime.execution is not None:
        found.append(host.runtime.execution.host.id)
    return found


async def finish(stop: Stop, host: Host, console: Console, seconds: float) -> int:
    """Drain for at most `seconds`, or until forced; say what is waited for and what was left."""
    drain = asyncio.ensure_future(host.drain(seconds))
    forced = asyncio.ensure_future(stop.forced.wait())
    waited = False
    try:
        while not drain.done() and not forced.done():
            await asyncio.wait(
                [drain, forced],
                timeout=REMIND_SECONDS if waited else 0.2,
                return_when=asyncio.FIRST_COMPLETED,
            )
            tools = host.running_tools()
            if not drain.done() and not forced.done() and (tools or not waited):
                waits = ", ".join(tools) or "what is under way"
                console.say("draining", f"Stopping after {waits}; again to stop now.", tools=tools)
            waited = True
    finally:
        drain.cancel()
        forced.cancel()
    left = host.running_tools()
    if left:
        console.say(
            "left",
            f"Stopped while {', '.join(left)} ran: nobody can know the outcome. `nerve reconcile`"
            " lists what became UNKNOWN.",
            tools=left,
        )
        return LEFT_UNKNOWN
    console.say("stopped", "Stopped; nothing was cancelled.")
    return DONE


def named(agents: Iterable[Harness]) -> str:
    """Agents with their versions, in a sentence."""
    return ", ".join(f"{each.definition.agent} {each.definition.version}" for each in agents)
