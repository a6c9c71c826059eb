"""An executor under test: tools that count their effects outside of every ledger, and a Brain's end."""

import asyncio
from dataclasses import dataclass, field

from nerve.protocol.catalog import Catalog
from nerve.protocol.executor import Executor
from nerve.protocol.signature import ToolContext
from support.hands_world import Asker, Told


@dataclass(slots=True)
class Effects:
    """What tools did, counted outside of every ledger; and a gate that holds a tool open."""

    entered: list[str] = field(default_factory=list[str])
    gate: asyncio.Event = field(default_factory=asyncio.Event)


def catalog(effects: Effects) -> Catalog:
    made = Catalog()

    @made.tool
    async def echo(text: str, context: ToolContext) -> str:
        effects.entered.append(context.execution)
        return text

    @made.tool
    async def origin(context: ToolContext) -> list[str]:
        return [context.origin.run, context.origin.step]

    @made.tool
    async def hold(context: ToolContext) -> str:
        effects.entered.append(context.execution)
        await effects.gate.wait()
        return "cancel was requested" if context.cancel_requested else "done"

    @made.tool(cancellable=True)
    async def stop(context: ToolContext) -> str:
        effects.entered.append(context.execution)
        await asyncio.Event().wait()
        return "never"

    @made.tool
    async def speak(size: int, context: ToolContext) -> str:
        await context.write(b"x" * size)
        return "said"

    return made


@dataclass(slots=True)
class World:
    """An executor with what a Brain has: its own end, and a way to make messages."""

    executor: Executor
    asker: Asker
    told: Told
    effects: Effects

    async def run(self, tool: str, **arguments: object) -> str:
        command = self.asker.call(tool, **arguments)
        await self.executor.start([self.asker.seal(command)])
        return command.execution
