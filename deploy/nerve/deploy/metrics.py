"""Scrapes: what a process measures by itself, and what the ledgers of its directory hold at that moment.

The second half is read when somebody asks, so that it is the ledger's own truth and costs nothing
otherwise. No identity becomes a label.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

from nerve.common.clock import SystemClock
from nerve.common.metrics import Gauge, Instrument, parse_address
from nerve.common.place import StateDirectory
from nerve.common.sql.sqlite import Reader
from nerve.common.sql.survey import Survey, survey
from nerve.deploy.presence import seen
from nerve.deploy.probes import Health, answering
from nerve.protocol.errors import BadInput, NerveError

if TYPE_CHECKING:
    from nerve.deploy.host import Host


@final
class Scrapes:
    """What `/metrics` shows: the host that runs now and the ledgers that it has."""

    def __init__(self, health: Health) -> None:
        self.address: str | None = None
        self._health = health
        self._host: Host | None = None

    def show(self, host: "Host") -> None:
        self._host = host
        self._health.started(host)

    def collect(self) -> Iterable[Any]:  # prometheus-client has no public type for families
        host = self._host
        if host is None:
            return
        for instrument in instruments_of(host):
            yield from instrument.collect()
        names = [f"hands-{route}" for route in host.workers]
        if host.backend is not None:
            names.append("brain")
        yield from held(host.directory, [n for n in names if n in host.directory.ledgers])

    @classmethod
    @contextmanager
    def serving(cls, address: str | None, *, stall_seconds: float) -> Generator[Self]:
        """Answer scrapes and probes at HOST:PORT for the length of a block; nothing where it is None."""
        health = Health(stall_seconds=stall_seconds)
        scrapes = cls(health)
        if address is None:
            yield scrapes
            return
        stop = scrapes._serve(*_parsed(address))
        try:
            with health.beating():
                yield scrapes
        finally:
            stop()

    def _serve(self, host: str, port: int) -> Callable[[], None]:
        import prometheus_client
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

        from nerve.deploy.probe_server import serve

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        registry.register(self)
        untyped: Any = prometheus_client
        server = serve(host, port, answering(self._health, untyped.make_wsgi_app(registry)))
        self.address = f"{host}:{server.port}"
        return server.stop


def instruments_of(host: "Host") -> Iterator[Instrument]:
    """What this process measures by itself."""
    for worker in host.workers.values():
        yield from worker.metrics.instruments()
    measured = host.metrics
    yield measured.bundle_envelopes
    yield measured.hop_seconds
    if host.runtime is not None:
        yield measured.batch_units
        yield measured.commit_seconds
        yield _lateness(host)


def _lateness(host: "Host") -> Gauge:
    """How late the Brain's last heartbeat was; Hands tell their own."""
    gauge = Gauge("nerve_brain_lease_late_seconds", "How late the last heartbeat was.")
    execution = None if host.runtime is None else host.runtime.execution
    gauge.set(0.0 if execution is None else execution.host.beat_late_seconds)
    return gauge


def held(place: StateDirectory, names: Iterable[str]) -> Iterator[Any]:
    """What these ledgers hold now, as metric families; a ledger that cannot be read is left out."""
    gauges = _Gauges()
    for name in names:
        try:
            _fill(gauges, place, name, place.ledger(name))
        except NerveError:
            continue
    for gauge in gauges.all():
        yield from gauge.collect()


def text_of(place: StateDirectory) -> str:
    """The same in Prometheus' text form, for every ledger of a directory."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Families:
        def collect(self) -> Iterator[Any]:
            return held(place, place.ledgers)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    return generate_latest(registry).decode()


@final
class _Gauges:
    def __init__(self) -> None:
        ledger = ["ledger"]
        self.outbox = Gauge("nerve_ledger_outbox_rows", "Messages waiting to be sent.", ledger)
        self.outbox_oldest = Gauge(
            "nerve_ledger_outbox_oldest_seconds", "Age of the oldest of them.", ledger
        )
        self.inbox = Gauge(
            "nerve_ledger_inbox_rows", "Messages received and not applied.", ["ledger", "state"]
        )
        self.inbox_oldest = Gauge(
            "nerve_ledger_inbox_oldest_seconds", "Age of the oldest of them.", ledger
        )
        self.refused = Gauge("nerve_ledger_refused_rows", "Messages kept as refused.", ledger)
        self.hosts = Gauge(
            "nerve_ledger_hosts", "Hosts that are not released.", ["ledger", "alive"]
        )
        self.turns = Gauge("nerve_ledger_turns", "Turns by phase.", ["phase"])
        self.executions = Gauge(
            "nerve_ledger_executions",
            "Executions by route and outcome, as the side that holds the ledger knows them.",
            ["ledger", "route", "outcome"],
        )
        self.unknown = Gauge(
            "nerve_ledger_unknown_open", "Outcomes that wait for reconciliation.", ledger
        )
        self.lost = Gauge(
            "nerve_ledger_runs", "Runs by how they ended; LOST ones were taken over.", ["state"]
        )

    def all(self) -> list[Gauge]:
        return list(vars(self).values())


def _fill(gauges: _Gauges, place: StateDirectory, name: str, path: Path) -> None:
    found = survey(path)
    _fill_common(gauges, place, name, found)
    reader = Reader(path)
    try:
        if found.room == "brain":
            _fill_brain(gauges, name, reader)
        else:
            _fill_hands(gauges, name, reader)
    finally:
        reader.close()


def _fill_common(gauges: _Gauges, place: StateDirectory, name: str, found: Survey) -> None:
    now = SystemClock().now_ms()
    gauges.outbox.set(found.outbox, name)
    gauges.outbox_oldest.set(_seconds(found.outbox_oldest_at, now), name)
    gauges.inbox.set(found.held, name, "held")
    gauges.inbox.set(found.quarantined, name, "quarantined")
    gauges.inbox_oldest.set(_seconds(found.inbox_oldest_at, now), name)
    gauges.refused.set(found.refused, name)
    alive = [each.alive for each in seen(place.locks, found.hosts)]
    gauges.hosts.set(alive.count(True), name, "yes")
    gauges.hosts.set(alive.count(False), name, "no")


def _fill_brain(gauges: _Gauges, name: str, reader: Reader) -> None:
    from nerve.brain.ledger.census import census

    numbers = reader.read(census)
    for row in numbers.turns:
        gauges.turns.set(row["number"], row["phase"])
    for row in numbers.calls:
        gauges.executions.set(row["number"], name, row["route"], row["outcome"])
    for row in numbers.runs:
        gauges.lost.set(row["number"], row["state"])
    gauges.unknown.set(numbers.unknown, name)


def _fill_hands(gauges: _Gauges, name: str, reader: Reader) -> None:
    from nerve.hands.ledger.answers import COUNTS

    route = name.removeprefix("hands-")
    unknown = 0
    for row in reader.read(lambda tx: tx.all(COUNTS)):
        gauges.executions.set(row["number"], name, route, row["state"])
        unknown += row["number"] if row["state"] == "UNKNOWN" else 0
    gauges.unknown.set(unknown, name)


def _seconds(at: int | None, now: int) -> float:
    return 0.0 if at is None else max(0, now - at) / 1000


def _parsed(address: str) -> tuple[str, int]:
    try:
        return parse_address(address)
    except ValueError as error:
        raise BadInput(str(error), where="--metrics") from None
