"""The agents of one host by the exact definition that Threads pin."""

from collections.abc import Iterable, Mapping
from typing import Any

from nerve.brain.harness import Harness
from nerve.brain.ledger.definitions import definition_id
from nerve.protocol.errors import Conflict


class Registry:
    """Several versions of one agent may live side by side; a host claims only what stands here."""

    def __init__(self, agents: Iterable[Harness] = ()) -> None:
        self._agents: dict[str, Harness] = {}
        for agent in agents:
            id = definition_id(agent.definition)
            if id in self._agents:
                raise Conflict(
                    f"two agents are both {id}",
                    where="agents",
                    next_step="give one of them another name or version",
                )
            self._agents[id] = agent

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def get(self, id: str) -> Harness:
        return self._agents[id]

    def items(self) -> Iterable[tuple[str, Harness]]:
        return self._agents.items()


AGENT = "(agent)"
"""Where the agent itself stands beside its tools; no tool can have that name."""


def frozen(agent: Harness) -> Mapping[str, Any]:
    """What is registered of an agent: its nature and its tools as JSON, so that a change under one
    version is seen."""
    tools = {name: binding.to_json() for name, binding in sorted(agent.bindings.items())}
    return {AGENT: dict(agent.nature), **tools} if agent.nature else tools
