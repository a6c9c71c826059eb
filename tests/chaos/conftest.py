"""One fork server for the chaos tests of a worker."""

from collections.abc import Generator

import pytest

from support.cluster import Forge, forge


@pytest.fixture(scope="session")
def hosts() -> Generator[Forge]:
    """Where processes come from; whatever still runs at the end is killed."""
    with forge() as made:
        yield made
