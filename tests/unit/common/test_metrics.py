"""Instruments: plain numbers that a scrape of the process shows, with no identity in a label."""

import re
import urllib.request

import pytest

from nerve.common.metrics import Metrics, parse_address, serve


def scrape(metrics: Metrics) -> dict[str, float]:
    server = serve(metrics)
    try:
        host, port = server.address
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        server.close()
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def test_a_scrape_shows_what_was_counted() -> None:
    metrics = Metrics()
    metrics.executions.add("hands", "succeeded", by=2)
    metrics.outbox_depth.set(7, "brain")
    metrics.unknown_open.ask(lambda: 3, "hands")
    metrics.batch_units.observe(3, "brain")
    metrics.batch_units.observe(1000, "brain")
    samples = scrape(metrics)
    assert 2 == samples['nerve_executions_total{outcome="succeeded",route="hands"}']
    assert 7 == samples['nerve_outbox_rows{side="brain"}']
    assert 3 == samples['nerve_unknown_open{side="hands"}']
    assert 1 == samples['nerve_batch_units_bucket{le="4.0",side="brain"}']
    assert 2 == samples['nerve_batch_units_bucket{le="+Inf",side="brain"}']
    assert 1003 == samples['nerve_batch_units_sum{side="brain"}']
    assert samples["process_resident_memory_bytes"] > 0


def test_a_source_that_fails_does_not_fail_the_scrape() -> None:
    metrics = Metrics()
    metrics.outbox_depth.ask(lambda: 1 / 0, "brain")
    metrics.turns.add("succeeded")
    samples = scrape(metrics)
    assert 1 == samples['nerve_turns_total{outcome="succeeded"}']


def test_values_can_be_read_without_a_scrape() -> None:
    metrics = Metrics()
    metrics.recoveries.add("brain")
    metrics.hop_seconds.observe(0.5, "brain")
    assert (1.0, 1, 0.5) == (
        metrics.recoveries.value("brain"),
        metrics.hop_seconds.count("brain"),
        metrics.hop_seconds.total("brain"),
    )


def test_names_follow_the_field() -> None:
    for instrument in Metrics().instruments():
        name = str(getattr(instrument, "name", ""))
        assert re.fullmatch(r"nerve_[a-z_]+", name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert expected == parse_address(text)


@pytest.mark.parametrize("text", ["here", "h:", "h:99999"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_address(text)
