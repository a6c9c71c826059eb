"""How a host is: whether its loop still turns (live), and whether it can take work now (ready).

Live is for whoever restarts a process, ready for whoever waits for one. A host that drains, or that
lost its broker or its ledger, is live and not ready: restarting it would mend nothing.
"""

import asyncio
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from nerve.common.broker.port import Telling
from nerve.common.clock import Clock, SystemClock

if TYPE_CHECKING:
    from nerve.common.lease import Host as Incarnation
    from nerve.deploy.host import Host

PULSE_SECONDS = 0.5

Application = Callable[[dict[str, Any], Callable[..., Any]], Any]
"""WSGI, which has no public types."""


@final
class Health:
    """Written by the event loop, read by the thread that answers probes."""

    def __init__(self, *, stall_seconds: float, clock: Clock | None = None) -> None:
        self._stall_seconds = stall_seconds
        self._clock = clock or SystemClock()
        self._turned = self._clock.monotonic()
        self._host: Host | None = None

    def started(self, host: "Host") -> None:
        self._host = host

    @contextmanager
    def beating(self) -> Generator[None]:
        """Notice for the length of a block that the loop turns."""
        pulse = asyncio.get_running_loop().create_task(self._beat(), name="pulse")
        try:
            yield
        finally:
            pulse.cancel()

    async def _beat(self) -> None:
        while True:
            self._turned = self._clock.monotonic()
            await self._clock.sleep(PULSE_SECONDS)

    def live(self) -> list[str]:
        """What is wrong with the process itself; nothing: leave it alone."""
        still = self._clock.monotonic() - self._turned
        if still < self._stall_seconds:
            return []
        return [f"the event loop has stood still for {still:.0f} s"]

    def ready(self) -> list[str]:
        """What keeps this host from taking work now, each in a sentence without secrets."""
        if self._host is None:
            return ["it is starting"]
        if self._host.draining:
            return ["it was asked to stop and takes nothing new"]
        return [*self.live(), *_ownership(self._host), *_connections(self._host)]


def _ownership(host: "Host") -> Iterator[str]:
    """Ledger and lease: a heartbeat that was written lately shows both."""
    for incarnation in _incarnations(host):
        if incarnation is None:
            yield "it was released by another host and is registering anew"
        elif not incarnation.alive():
            yield f"the lease of {incarnation.id} has run out"
        elif not incarnation.beating():
            yield f"the ledger takes no heartbeat of {incarnation.id}"


def _incarnations(host: "Host") -> "Iterator[Incarnation | None]":
    for worker in host.workers.values():
        yield worker.host
    if host.runtime is not None and len(host.runtime.registry):
        yield None if host.runtime.execution is None else host.runtime.execution.host


def _connections(host: "Host") -> Iterator[str]:
    if isinstance(host.broker, Telling):
        yield from host.broker.troubles()


def answering(health: Health, metrics: Application) -> Application:
    """`/live` and `/ready` answer 200 or 503 with the reasons; everything else is `metrics`."""
    probes = {"/live": health.live, "/ready": health.ready}

    def application(request: dict[str, Any], start: Callable[..., Any]) -> Any:
        probe = probes.get(str(request.get("PATH_INFO")))
        if probe is None:
            return metrics(request, start)
        why = probe()
        start(
            "503 Service Unavailable" if why else "200 OK",
            [("Content-Type", "application/json"), ("Cache-Control", "no-store")],
        )
        return [json.dumps({"ok": not why, "why": why}).encode() + b"\n"]

    return application
