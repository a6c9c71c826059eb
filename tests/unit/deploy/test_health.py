"""Live and ready: who is asked, what is told, and that a stopping or cut-off host is live and not ready."""

import asyncio
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nerve.common.broker.sqlite import SqliteBroker
from nerve.common.settings import Settings
from nerve.deploy import health
from nerve.deploy.host import Host, hands_host
from nerve.deploy.metrics import Scrapes
from nerve.protocol import Catalog
from support.waiting import until

tools = Catalog(route="hands")


@tools.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


def probe(address: str, path: str) -> tuple[int, list[str]]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, json.loads(answer.read())["why"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["why"]


async def probed(scrapes: Scrapes, path: str) -> tuple[int, list[str]]:
    assert scrapes.address is not None
    return await asyncio.to_thread(probe, scrapes.address, path)


async def test_a_host_is_live_from_its_first_moment_and_ready_when_it_has_its_ledger_and_lease(
    tmp_path: Path,
) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=30) as scrapes:
        assert (200, []) == await probed(scrapes, "/live")
        assert (503, ["it is starting"]) == await probed(scrapes, "/ready")
        async with hands_host(tools, tmp_path, route="hands") as host:
            scrapes.show(host)
            assert (200, []) == await probed(scrapes, "/ready")


@pytest.mark.report("U115")
async def test_a_host_that_drains_is_not_ready_at_once_and_stays_live(tmp_path: Path) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=30) as scrapes:
        async with hands_host(tools, tmp_path, route="hands") as host:
            scrapes.show(host)
            draining = asyncio.ensure_future(host.drain(5))
            await asyncio.sleep(0)
            status, why = await probed(scrapes, "/ready")
            assert (503, ["it was asked to stop and takes nothing new"]) == (status, why)
            assert (200, []) == await probed(scrapes, "/live")
            await draining


async def test_a_loop_that_stands_still_is_neither_live_nor_ready(tmp_path: Path) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=0.8) as scrapes:
        async with hands_host(tools, tmp_path, route="hands") as host:
            scrapes.show(host)
            with ThreadPoolExecutor(1) as thread:
                # The loop waits here without turning, as under a tool that never awaits.
                found = thread.submit(first_no, scrapes).result(timeout=20)
            assert "the event loop has stood still" in found
            await until(lambda: probe_now(scrapes, "/ready") == 200, "it is ready again")


def first_no(scrapes: Scrapes) -> str:
    while True:
        status, why = probe(str(scrapes.address), "/live")
        if status == 503:
            return why[0]


def probe_now(scrapes: Scrapes, path: str) -> int:
    return probe(str(scrapes.address), path)[0]


async def test_a_host_without_its_lease_is_not_ready(tmp_path: Path) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=30) as scrapes:
        settings = Settings(lease_seconds=0.9, heartbeat_seconds=0.3)
        async with hands_host(tools, tmp_path, route="hands", settings=settings) as host:
            scrapes.show(host)
            [worker] = host.workers.values()
            await worker.host.stop_beating()
            await until(lambda: probe_now(scrapes, "/ready") == 503, "the lease runs out")
            assert (
                f"the lease of {worker.host.id} has run out"
                in ((await probed(scrapes, "/ready"))[1])
            )
            assert (200, []) == await probed(scrapes, "/live")


class CutOff:
    """A broker that says what is wrong with it, as those with servers do."""

    def __init__(self, under: SqliteBroker) -> None:
        self._under = under

    def troubles(self) -> list[str]:
        return ["nerve.local.hands.commands is not consumed yet"]

    def __getattr__(self, name: str) -> object:
        return getattr(self._under, name)


@pytest.mark.report("U43")
async def test_a_consumer_that_the_broker_does_not_know_makes_its_host_not_ready(
    tmp_path: Path,
) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=30) as scrapes:
        async with hands_host(tools, tmp_path, route="hands") as host:
            cut = Host(directory=host.directory, clock=host.clock, workers=host.workers)
            assert isinstance(host.broker, SqliteBroker)
            cut.broker = CutOff(host.broker)  # type: ignore[assignment]
            scrapes.show(cut)
            found = await probed(scrapes, "/ready")
            assert (503, ["nerve.local.hands.commands is not consumed yet"]) == found
            assert (200, []) == await probed(scrapes, "/live")


async def test_the_command_says_in_a_line_how_a_host_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=30) as scrapes:
        address = str(scrapes.address)
        assert 6 == await asyncio.to_thread(health.check, address)
        assert "not ready: it is starting\n" == capsys.readouterr().out
        assert 0 == await asyncio.to_thread(health.check, address, live=True)
        assert "live\n" == capsys.readouterr().out
    assert 6 == health.check(address, as_json=True)
    assert not json.loads(capsys.readouterr().out)["ok"]
    assert 2 == health.check("nowhere")


async def test_metrics_are_served_beside_the_probes(tmp_path: Path) -> None:
    with Scrapes.serving("127.0.0.1:0", stall_seconds=30) as scrapes:
        async with hands_host(tools, tmp_path, route="hands") as host:
            scrapes.show(host)

            def read() -> str:
                url = f"http://{scrapes.address}/metrics"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return str(answer.read().decode())

            assert "nerve_ledger_hosts" in await asyncio.to_thread(read)
