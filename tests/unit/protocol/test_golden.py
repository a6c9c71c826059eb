"""Messages that were ever sent are read for ever: the golden files never change."""

import hashlib
from pathlib import Path

import pytest

from golden.samples import samples, sealed
from nerve.protocol.catalog import Catalog
from nerve.protocol.envelope import Body, open_envelope, seal

FOLDER = Path(__file__).parents[2] / "golden"
LINES = (FOLDER / "SHA256SUMS").read_text().splitlines()
SUMS = {line.partition("  ")[2]: line.partition("  ")[0] for line in LINES}
NAMES = sorted(SUMS)


def test_every_golden_file_is_listed_and_every_listed_one_is_there() -> None:
    assert sorted(path.name for path in FOLDER.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_file_has_the_bytes_it_always_had(name: str) -> None:
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == SUMS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_message_opens_and_seals_to_the_same_bytes(name: str) -> None:
    raw = (FOLDER / name).read_bytes()
    opened = open_envelope(raw)
    again = seal(
        body=opened.body,
        deployment=opened.deployment,
        namespace=opened.namespace,
        route=opened.route,
        issued_at=opened.issued_at,
        id=opened.id,
        trace=opened.trace,
    )
    assert again.raw == raw


@pytest.mark.parametrize(("name", "body"), sorted(samples().items()))
def test_todays_message_is_the_golden_one(name: str, body: Body) -> None:
    assert sealed(body).raw == (FOLDER / f"{name}.json").read_bytes()


def test_the_digest_of_a_binding_never_changes_for_the_same_tool() -> None:
    tools = Catalog()

    @tools.tool(version="3", idempotent_start=True, failures=(ValueError,), target={"host": "a"})
    def forecast(city: str, days: int = 1) -> str:  # pyright: ignore[reportUnusedFunction]
        """Tomorrow's weather."""
        return city

    assert tools.get("forecast").digest == DIGEST


DIGEST = "sha256:42a12795ed143bdba7973befe35bb7f7dbd81945613b2c18a8e030a05d9cd8e2"
