"""Servers in containers: what counts as ready, what is left behind, and a run that cannot run says so."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration import run
from support import engine
from support.servers import containers
from support.servers.containers import LABEL, POSTGRES, RABBITMQ, RECIPES, ContainerServer
from support.services import Unavailable

ROOT = Path(__file__).parents[3]


@contextmanager
def listening(answer: bytes) -> Generator[int]:
    """A port that is open, and where whoever connects is told `answer` and left."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(64)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.report("U135")
def test_an_open_port_is_not_a_server_that_speaks() -> None:
    for recipe, port in ((RABBITMQ, 5672), (POSTGRES, 5432)):
        with listening(b"") as open_port:
            ports = {port: open_port, 15672: open_port}
            assert not recipe.ready(ports)
    with listening(b"S") as speaking:
        assert POSTGRES.ready({5432: speaking})


def test_a_server_that_is_never_ready_is_given_up_after_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "READY_SECONDS", 0.3)

    def docker(*words: str, check: bool = True) -> str:
        return "its log"

    monkeypatch.setattr(engine, "docker", docker)
    with pytest.raises(Unavailable, match=r"postgres is not ready after 0\.3 s: its log"):
        containers.await_ready(POSTGRES, {5432: 9}, "container")


def test_every_service_of_the_tests_has_a_container() -> None:
    assert {"postgres", "rabbitmq", "rocketmq", "s3"} == set(RECIPES)
    ports = {port: 1000 + port for recipe in RECIPES.values() for port in recipe.ports}
    for recipe in RECIPES.values():
        assert all(key.startswith("NERVE_TEST_") for key in recipe.addresses(ports))


def test_without_an_engine_the_integration_run_fails_and_says_how_to_get_one() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "integration.run"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PATH": "/nonexistent"},
    )
    assert run.MISSING == ended.returncode
    assert "there is no docker client" in ended.stderr
    assert "make images" in ended.stderr


RESULT = """<testsuites><testsuite>
<testcase classname="a" name="passes"/>
<testcase classname="a" name="fails"><failure message="no"/></testcase>
<testcase classname="a" name="breaks"><error message="no"/></testcase>
<testcase classname="a" name="skips"><skipped message="no server"/></testcase>
</testsuite></testsuites>"""


def test_what_was_skipped_counts_against_a_run(tmp_path: Path) -> None:
    xml = tmp_path / "result.xml"
    xml.write_text(RESULT)
    found = run.outcome("faults", xml, 1.0)
    assert (4, ["a::fails", "a::breaks"], ["a::skips"]) == (
        found.tests,
        found.failed,
        found.skipped,
    )
    assert run.outcome("faults", tmp_path / "none.xml", 1.0).failed == ["it wrote no result"]
    xml.write_text("<testsuites/>")
    assert run.outcome("faults", xml, 1.0).failed == ["it has no tests"]


def test_every_suite_of_the_integration_run_is_there() -> None:
    absent = [
        path for suite in run.SUITES.values() for path in suite.paths if not (ROOT / path).exists()
    ]
    assert [] == absent


def test_every_test_that_no_container_can_show_is_there() -> None:
    places = [ROOT / path for suite in run.SUITES.values() for path in suite.paths]
    files = [
        each for place in places for each in (place.glob("*.py") if place.is_dir() else [place])
    ]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [] == [name for name in run.NATIVE_ONLY if f" {name}(" not in text]


def test_no_outgoing_connection_is_given_the_port_of_a_server() -> None:
    found = containers.free_ports(20)
    assert 20 == len(set(found))
    assert [] == [port for port in found if not 1024 < port < 32_768]


@pytest.mark.external
@pytest.mark.report("U136")
@pytest.mark.timeout(300)
def test_containers_of_a_process_that_is_gone_are_removed_and_others_stay() -> None:
    engine.engine_or_skip(POSTGRES.stand_in)
    living = ContainerServer(POSTGRES)
    try:
        living.start()
        assert os.environ["TESTCONTAINERS_RYUK_DISABLED"] == "true"
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        left = engine.docker(
            "run", "-d", "--label", f"{LABEL}={gone.pid}", POSTGRES.stand_in, "sleep", "600"
        ).strip()
        assert containers.sweep() >= 1
        remaining = engine.docker("ps", "-aq", "--no-trunc", "--filter", f"label={LABEL}").split()
        assert left not in remaining
        assert living.id in remaining
    finally:
        living.drop()
