"""Tries an agent without a ledger, a broker or a second process, and with hosts that die.

turn = await rehearse(agent, "Will it rain in Oslo?", tools=tools)
assert turn.text == "It will be sunny."
assert [call.tool for call in turn.calls] == ["forecast"]

await rehearse_crashes(agent, "Will it rain in Oslo?", tools=tools)
"""

from collections.abc import Callable, Mapping

from nerve.brain.harness import Harness
from nerve.brain.testing.conductor import Conductor, Ended
from nerve.brain.testing.hands import Stub
from nerve.brain.testing.memory_host import ContractBroken, MemoryHost
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Content

PLACES_MAX = 10_000
Agent = Harness | Callable[[], Harness]


async def rehearse(
    agent: Agent,
    content: Content,
    *,
    tools: Catalog | None = None,
    stubs: Mapping[str, Stub] | None = None,
) -> Ended:
    """One Turn in a new Thread. Tools run here; `stubs` are called in their place by name."""
    return await Conductor(_maker(agent), stubs, tools=tools).turn(content)


async def rehearse_crashes(
    agent: Agent,
    content: Content,
    *,
    tools: Catalog | None = None,
    stubs: Mapping[str, Stub] | None = None,
) -> int:
    """The same Turn again and again, its host killed at one place more each time.

    Every Turn must end as the undisturbed one does, with the same tools run as often. Says how many
    places there were; give a function that makes the agent where it keeps something of its own.
    """
    expected = Conductor(_maker(agent), stubs, tools=tools)
    answer = _shown(await expected.turn(content))
    for place in range(1, PLACES_MAX):
        host = MemoryHost(crash_at=place)
        conductor = Conductor(_maker(agent), stubs, tools=tools)
        found = _shown(await conductor.turn(content, host=host))
        if not host.crashed:
            return place - 1
        if (found, conductor.ran) != (answer, expected.ran):
            raise ContractBroken(
                f"after a crash at place {place} the Turn ended with {found!r} and ran"
                f" {conductor.ran}, without one it ends with {answer!r} and runs {expected.ran}"
            )
    raise ContractBroken(f"the Turn has more than {PLACES_MAX} places to crash at")


def _maker(agent: Agent) -> Callable[[], Harness]:
    return (lambda: agent) if hasattr(agent, "advance") else agent  # type: ignore[return-value]


def _shown(ended: Ended) -> str:
    return str([message.to_json() for message in ended.messages] or ended.outcome)
