"""Which protocol this build speaks, and which it understands."""

import os
import re
from functools import lru_cache
from typing import Final, NamedTuple

from nerve.protocol.errors import ProtocolVersion

PROTOCOL: Final = "nerve.execution"
_FORM = re.compile(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\Z")


class Version(NamedTuple):
    """Another minor is understood, a newer one by ignoring what it added; another major is not."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    def check(self, protocol: object, version: object) -> bool:
        """Whether the sender is newer and may have added fields; raises where it is foreign."""
        if protocol != PROTOCOL:
            raise ProtocolVersion(
                f"the protocol {_shown(protocol)}, not {PROTOCOL}",
                where="/protocol",
                next_step="Look for another program that sends to this topic",
            )
        sender = parse_version(version)
        if sender.major != self.major:
            older = "this process" if sender.major > self.major else "the sender"
            raise ProtocolVersion(
                f"{PROTOCOL} version {sender} does not work with version {self}",
                where="/version",
                next_step=f"Upgrade {older}: both sides need the same major version",
            )
        return sender.minor > self.minor


def parse_version(text: object) -> Version:
    version = _parsed(text) if isinstance(text, str) else None
    if version is None:
        raise ProtocolVersion(
            f"the version {_shown(text)}", where="/version", next_step="Write it as major.minor"
        )
    return version


@lru_cache(maxsize=64)
def _parsed(text: str) -> Version | None:
    match = _FORM.match(text)
    return None if match is None else Version(int(match[1]), int(match[2]))


def _shown(value: object) -> str:
    return ascii(value)[:80]


BUILT: Final = Version(1, 0)
# A build with another version is simulated by the environment, in tests of skew.
CURRENT: Final = parse_version(os.environ.get("NERVE_PROTOCOL_VERSION", str(BUILT)))
