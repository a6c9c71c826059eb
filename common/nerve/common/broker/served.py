"""What a broker with a server tells an operator: what it lacks for our topics, and which limits it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Something that must be on the server and is not."""

    topic: str
    what: str
    """In words, for instance "the queue nerve.local.hands.commands"."""
    step: str
    """The exact command, or the right to ask for."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit of the server for us. `value` None: it cannot be asked; `about` says what holds then."""

    name: str
    value: int | str | None
    about: str


@runtime_checkable
class Served(Protocol):
    """A broker whose topics somebody has to make."""

    @property
    def shown(self) -> str:
        """Its address without secrets."""
        ...

    @property
    def creates(self) -> bool:
        """Whether the address allows hosts to make what is missing."""
        ...

    async def lacking(
        self, topics: Sequence[str], *, reads: Sequence[str], create: bool
    ) -> list[Lack]:
        """What is missing for `topics`, of which `reads` are consumed from here; with `create` it is made
        first, where that can be done from here.

        Raises:
            BrokerUnavailable: the server did not answer.
        """
        ...

    async def limits(self, topics: Sequence[str]) -> list[Limit]:
        """What is in force for `topics`, all that stand. Raises as `lacking`."""
        ...

    async def retention_ms(self, topics: Sequence[str]) -> int | None:
        """How long an unread message is kept at least; None: until it is read, or nobody can tell."""
        ...
