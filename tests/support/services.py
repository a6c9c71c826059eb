"""Which real service a test uses: an address from the environment, else a server of this machine,
else a container, else the test is skipped; with `NERVE_REQUIRE` a missing service is a failure.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest


class Unavailable(Exception):
    """A provider cannot give its service here; the text says why in one line."""


Provider = Callable[[], str]
"""Starts or finds the service and returns its address, or raises Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A kind of service that tests need, and the ways to get one, in the order they are tried."""

    name: str
    variable: str
    native: Sequence[Provider] = field(default=())
    container: Sequence[Provider] = field(default=())

    def address(self) -> str:
        """The service's address; skips or fails the test where there is none."""
        given = os.environ.get(self.variable)
        if given:
            return given
        reasons = [f"{self.variable} is not set"]
        for provider in (*self.native, *self.container):
            try:
                return provider()
            except Unavailable as unavailable:
                reasons.append(str(unavailable))
        return self._missing("; ".join(reasons))

    def _missing(self, reasons: str) -> str:
        text = f"no {self.name} here: {reasons}"
        if required(self.name):
            pytest.fail(f"{text} (NERVE_REQUIRE asks for it)")
        pytest.skip(text)


def required(name: str) -> bool:
    """Whether `NERVE_REQUIRE` (names separated by commas, or `all`) asks for this service."""
    asked = {word.strip() for word in os.environ.get("NERVE_REQUIRE", "").split(",")}
    return bool(asked & {name, "all"})
