"""What a process can tell about itself to Prometheus. No identity ever becomes a label.

The hot path only adds to plain numbers; prometheus-client is imported where a registry is made, so that a
process without `--metrics` never pays for it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

SIZES: Sequence[float] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SECONDS: Sequence[float] = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


class Instrument(Protocol):
    def collect(self) -> "Iterable[Metric]": ...


@final
class Counter:
    """A number that only grows, for each combination of label values."""

    __slots__ = ("_labels", "_values", "about", "name")

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.about = about
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(self.name, self.about, labels=self._labels)
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value)
        yield family


@final
class Gauge:
    """A number of now: set, or asked for when somebody looks."""

    __slots__ = ("_ask", "_labels", "_values", "about", "name")

    def __init__(self, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.about = about
        self._labels = tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}
        self._ask: dict[tuple[str, ...], Callable[[], float]] = {}

    def set(self, value: float, *labels: str) -> None:
        self._values[labels] = value

    def ask(self, source: Callable[[], float], *labels: str) -> None:
        """Call `source` at each scrape instead of keeping the number up to date."""
        self._ask[labels] = source

    def value(self, *labels: str) -> float:
        source = self._ask.get(labels)
        return source() if source is not None else self._values.get(labels, 0.0)

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.metrics_core import GaugeMetricFamily

        family = GaugeMetricFamily(self.name, self.about, labels=self._labels)
        for labels in sorted({*self._values, *self._ask}):
            family.add_metric(labels, self._told(labels))
        yield family

    def _told(self, labels: tuple[str, ...]) -> float:
        """One source that cannot answer (a locked ledger) must not fail the whole scrape."""
        try:
            return self.value(*labels)
        except Exception:
            return nan


@final
@dataclass(slots=True)
class _Buckets:
    counts: list[int]
    total: float = 0.0


@final
class Histogram:
    """How a measured number is spread."""

    __slots__ = ("_bounds", "_labels", "_series", "about", "name")

    def __init__(
        self, name: str, about: str, labels: Sequence[str] = (), *, bounds: Sequence[float]
    ) -> None:
        self.name = name
        self.about = about
        self._labels = tuple(labels)
        self._bounds = list(bounds)
        self._series: dict[tuple[str, ...], _Buckets] = {}

    def observe(self, value: float, *labels: str) -> None:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Buckets([0] * (len(self._bounds) + 1))
        series.counts[bisect_left(self._bounds, value)] += 1
        series.total += value

    def count(self, *labels: str) -> int:
        series = self._series.get(labels)
        return sum(series.counts) if series else 0

    def total(self, *labels: str) -> float:
        series = self._series.get(labels)
        return series.total if series else 0.0

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.about, labels=self._labels)
        edges = [*map(str, map(float, self._bounds)), "+Inf"]
        for labels, series in list(self._series.items()):
            reached, buckets = 0, list[tuple[str, float]]()
            for edge, count in zip(edges, series.counts, strict=True):
                reached += count
                buckets.append((edge, reached))
            family.add_metric(labels, buckets, sum_value=series.total)
        yield family


@final
class Metrics:
    """The instruments of one process. Every host has its own, so that two in one process stay apart."""

    def __init__(self) -> None:
        self.executions = Counter(
            "nerve_executions", "Executions that ended, by route and outcome.", ["route", "outcome"]
        )
        self.turns = Counter("nerve_turns", "Turns that ended, by outcome.", ["outcome"])
        self.outbox_depth = Gauge("nerve_outbox_rows", "Messages waiting to be sent.", ["side"])
        self.outbox_oldest = Gauge(
            "nerve_outbox_oldest_seconds", "Age of the oldest message waiting to be sent.", ["side"]
        )
        self.inbox_depth = Gauge("nerve_inbox_rows", "Messages received and not applied.", ["side"])
        self.inbox_oldest = Gauge(
            "nerve_inbox_oldest_seconds", "Age of the oldest message not applied.", ["side"]
        )
        self.batch_units = Histogram(
            "nerve_batch_units", "Units that shared one commit.", ["side"], bounds=SIZES
        )
        self.bundle_envelopes = Histogram(
            "nerve_bundle_envelopes", "Envelopes that shared one message.", ["side"], bounds=SIZES
        )
        self.commit_seconds = Histogram(
            "nerve_commit_seconds",
            "From the write lock to the flushed commit.",
            ["side"],
            bounds=SECONDS,
        )
        self.hop_seconds = Histogram(
            "nerve_hop_seconds", "From the publish to the receiver.", ["side"], bounds=SECONDS
        )
        self.unknown_open = Gauge(
            "nerve_unknown_open", "Executions whose outcome waits for reconciliation.", ["side"]
        )
        self.recoveries = Counter(
            "nerve_recoveries", "Work taken over from a host that went away.", ["side"]
        )
        self.lease_lateness = Histogram(
            "nerve_lease_lateness_seconds", "How late a heartbeat was.", ["side"], bounds=SECONDS
        )
        self.quarantined = Counter("nerve_quarantined", "Messages set aside.", ["side"])
        self.refused = Counter("nerve_refused", "Messages refused at the door.", ["side"])

    def instruments(self) -> list[Instrument]:
        return list(vars(self).values())

    def registry(self) -> "CollectorRegistry":
        """A registry of prometheus-client with these instruments and the facts of the process."""
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        for instrument in self.instruments():
            registry.register(instrument)
        return registry


@final
class MetricsServer:
    """`/metrics` over HTTP, in a thread of its own, until closed."""

    def __init__(self, server: Any, thread: Any) -> None:  # prometheus-client types them so
        self._server = server
        self._thread = thread
        self.address: tuple[str, int] = (server.server_address[0], server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def serve(metrics: Metrics, host: str = "127.0.0.1", port: int = 0) -> MetricsServer:
    """Answer scrapes at `host:port`; port 0 takes a free one, told by `address`."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(port, addr=host, registry=metrics.registry())
    return MetricsServer(server, thread)


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, or only a port for this machine alone."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--metrics {text!r} is not HOST:PORT, for instance 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)
