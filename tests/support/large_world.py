"""A Brain and Hands of their own hosts in one test process, over one directory, with large values.

The agent calls its tool with as much as the text of its Turn says; the tool writes each call down
outside of the ledgers and gives as much back.
"""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nerve.brain.agents.context import Context
from nerve.brain.agents.function import function_agent
from nerve.brain.handles import Turn
from nerve.brain.harness import Harness
from nerve.brain.runtime import DurableRuntime
from nerve.common.settings import Settings
from nerve.deploy.host import Host, brain_host, hands_host
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from nerve.protocol.identity import SessionKey
from nerve.protocol.signature import ToolContext

KIB = 1024
MIB = 1024 * KIB
FAST: dict[str, Any] = {
    "scan_seconds": 0.05,
    "inquiry_silence_seconds": 0.3,
    "repeat_first_seconds": 0.5,
    "broker_poll_seconds": 0.05,
}


def text_of(size: int, name: str) -> str:
    """So many characters, other ones for each name."""
    return (name + "/") * (size // (len(name) + 1)) + "x" * (size % (len(name) + 1))


@dataclass(slots=True, kw_only=True)
class LargeWorld:
    folder: Path
    settings: Settings = field(default_factory=lambda: Settings(**FAST))

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def values(self) -> list[Path]:
        """The objects of arguments and results; what an agent keeps of them in its journal is another one."""
        folder = self.state / "objects" / "acme"
        return [
            path for path in folder.rglob("*") if path.is_file() and "journal" not in path.parts
        ]

    def calls(self) -> list[str]:
        """The names of what the tool was called for, as it wrote them down itself."""
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def catalog(self) -> Catalog:
        catalog = Catalog(route="hands")

        @catalog.tool
        async def carry(name: str, text: str, back: int, context: ToolContext) -> dict[str, Any]:
            """Says how much came, and gives as much back as is wanted."""
            with (self.folder / "effects").open("a") as file:
                file.write(f"{name}\n")
            return {
                "came": len(text),
                "right": text == text_of(len(text), name),
                "back": "b" * back,
            }

        return catalog

    def agent(self) -> Harness:
        @function_agent("carrier", version="1", tools=self.catalog())
        async def carrier(ctx: Context, input: Message) -> str:
            name, there, back = input.text.split()
            got: Any = await ctx.call(
                "carry", name=name, text=text_of(int(there), name), back=int(back)
            )
            return f"{name} came={got['came']} right={got['right']} back={len(got['back'])}"

        return carrier

    @asynccontextmanager
    async def brain(self, settings: Settings | None = None) -> AsyncGenerator[Host]:
        async with brain_host(
            [self.agent()], self.state, settings=settings or self.settings
        ) as host:
            yield host

    @asynccontextmanager
    async def hands(self, settings: Settings | None = None) -> AsyncGenerator[Host]:
        async with hands_host(
            self.catalog(), self.state, settings=settings or self.settings
        ) as host:
            yield host

    @asynccontextmanager
    async def both(self) -> AsyncGenerator[tuple[DurableRuntime, Host]]:
        async with AsyncExitStack() as stack:
            brain = await stack.enter_async_context(self.brain())
            hands = await stack.enter_async_context(self.hands())
            assert brain.runtime is not None
            yield brain.runtime, hands


async def submit(runtime: DurableRuntime, name: str, there: int, back: int) -> Turn:
    session = await runtime.session(SessionKey("acme", f"s-{name}"), agent="carrier")
    return await session.submit(f"r-{name}", f"{name} {there} {back}")
