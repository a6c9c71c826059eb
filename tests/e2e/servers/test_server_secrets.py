"""A server refuses a host or is not there: at DEBUG, too, what is said of it holds no password."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

import pytest

from support.rabbit import a_virtual_host
from support.rocketmq_app import APP, SCRIPT
from support.servers.postgres import POSTGRES
from support.terminal import Terminal

pytestmark = [pytest.mark.external, pytest.mark.timeout(120)]

CANARY = "s3cr3t-word"


def wrong(url: str, *, place: str | None = None, scheme: str | None = None) -> str:
    """The address with a password that nobody has, elsewhere or otherwise spoken to."""
    parts = urlsplit(url)
    place = place or f"{parts.hostname}:{parts.port}"
    user = f"{parts.username}:{CANARY}@"
    return urlunsplit(SplitResult(scheme or parts.scheme, user + place, parts.path, "", ""))


BROKERS: dict[str, Callable[[str], str]] = {
    "wrong host": lambda url: wrong(url, place="127.0.0.1:1"),
    "wrong password": wrong,
    "no TLS there": lambda url: wrong(url, scheme="amqps"),
}
DATABASES: dict[str, Callable[[str], str]] = {
    "wrong host": lambda url: wrong(url, place="127.0.0.1:1"),
    "wrong user": lambda url: wrong(url).replace("://", "://nobody-"),
    "no TLS there": lambda url: f"{wrong(url)}?sslmode=verify-full",
}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "weather.yaml").write_text(SCRIPT)
    found = Terminal(tmp_path, {"NERVE_LOG_LEVEL": "DEBUG"})
    yield found
    found.close()


@pytest.mark.law(8)
@pytest.mark.report("U120")
@pytest.mark.parametrize("how", BROKERS)
def test_what_a_host_says_of_a_broker_that_it_cannot_use_holds_no_password(
    terminal: Terminal, how: str
) -> None:
    with a_virtual_host() as url:
        address = BROKERS[how](url)
        brain = terminal.start("brain", "app.py", NERVE_BROKER=address)
        brain.said("broker")
        doctor = terminal.run("doctor", NERVE_BROKER=address)
        assert doctor.code == 6, doctor
        brain.kill()
    for text in (doctor.out, doctor.err, brain.text):
        assert CANARY not in text


@pytest.mark.law(8)
@pytest.mark.report("U120")
@pytest.mark.parametrize("how", DATABASES)
def test_what_is_said_of_a_database_that_cannot_be_used_holds_no_password(
    terminal: Terminal, how: str
) -> None:
    address = DATABASES[how](POSTGRES.address())
    said = [
        terminal.run(*command, NERVE_DATABASE=address)
        for command in (["doctor"], ["ls"], ["migrate", "status"])
    ]
    for each in said:
        assert each.code == 6, each
        assert CANARY not in each.out + each.err
    host = terminal.start("brain", "app.py", NERVE_DATABASE=address)
    host.said("database")
    host.kill()
    assert CANARY not in host.text
