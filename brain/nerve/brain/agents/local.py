"""Tools that run inside a Step of the Brain, without Hands; none is silently repeated.

A receipt says that a tool was started before it is entered. Where a later host finds that receipt
and no result, nobody can know what became of it: the model is told so, and it does not run again.
A tool whose binding says that a repeated start is safe runs again and needs no such receipt.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from nerve.brain.harness import HarnessHost, Receipt
from nerve.common import faults
from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import JsonValue
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import BadInput, Incompatible, NerveError, ToolFailed
from nerve.protocol.execution import (
    Effect,
    ExecutionResult,
    ExecutionState,
    failed_result,
    told,
    value_result,
)
from nerve.protocol.signature import ToolFunction

faults.register("brain", ["brain.local.before_call", "brain.local.after_call"])

LOCAL_ROUTE = "local"
_LOST = failed_result(
    ToolFailed("The process died while the tool ran, and the tool was not run again")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOutcome:
    """What became of a local call; `text` is what a model may be told."""

    state: ExecutionState
    effect: Effect
    value: JsonValue
    text: str

    @classmethod
    def of(cls, state: ExecutionState, effect: Effect, result: ExecutionResult) -> "LocalOutcome":
        text = told(state, effect, result)
        return cls(state=state, effect=effect, value=result.value, text=text)


class LocalTools:
    """The functions of a catalog, run in this process."""

    def __init__(self, catalog: Catalog | None) -> None:
        self._functions: dict[str, ToolFunction] = {}
        bindings: dict[str, ToolBinding] = {}
        for binding in catalog or ():
            bindings[binding.name] = binding.model_copy(update={"route": LOCAL_ROUTE})
            self._functions[binding.name] = _function(cast("Catalog", catalog), binding)
        self.bindings: Mapping[str, ToolBinding] = MappingProxyType(bindings)

    def __contains__(self, tool: str) -> bool:
        return tool in self._functions

    async def run(
        self, call_id: str, tool: str, arguments: dict[str, JsonValue], host: HarnessHost
    ) -> LocalOutcome:
        """Once at most, unless its binding allows a repeated start."""
        key = f"tool:{call_id}"
        ended = await host.receipt(f"{key}:ended")
        asked: dict[str, JsonValue] = {"tool": tool, "arguments": arguments}
        if ended is not None:
            return _restored(_same(ended, asked, call_id))
        if await self._may_run(f"{key}:started", tool, asked, host):
            outcome = await self._outcome(tool, arguments)
        else:
            outcome = LocalOutcome.of(ExecutionState.UNKNOWN, Effect.UNCONFIRMED, _LOST)
        await host.put_receipt(Receipt(key=f"{key}:ended", value=_kept(outcome, asked)))
        return outcome

    async def _may_run(
        self, key: str, tool: str, asked: dict[str, JsonValue], host: HarnessHost
    ) -> bool:
        if self.bindings[tool].powers.idempotent_start:
            return True
        started = await host.receipt(key)
        if started is not None:
            _same(started, asked, key)
            return False
        await host.put_receipt(Receipt(key=key, value=asked))
        return True

    async def _outcome(self, tool: str, arguments: dict[str, JsonValue]) -> LocalOutcome:
        function = self._functions[tool]
        try:
            typed = function.arguments(tool, arguments)
            await faults.apoint("brain.local.before_call")
            if function.is_async:
                returned = await function.invoke(typed)
            else:
                returned = await asyncio.to_thread(function.invoke, typed)
            await faults.apoint("brain.local.after_call")
        except Exception as error:
            proven = isinstance(error, ToolFailed) or function.proves(error)
            effect = Effect.NONE if proven else Effect.UNCONFIRMED
            return LocalOutcome.of(ExecutionState.FAILED, effect, _failed(error))
        return LocalOutcome.of(ExecutionState.SUCCEEDED, Effect.COMPLETED, value_result(returned))


def together(tools: Catalog | None, local: LocalTools) -> Mapping[str, ToolBinding]:
    """Every tool of an agent by name, wherever it runs."""
    remote = {binding.name: binding for binding in tools or ()}
    both = sorted(remote.keys() & local.bindings.keys())
    if both:
        raise BadInput(
            f"the tool {both[0]!r} stands in tools and in local_tools",
            where=both[0],
            next_step="Keep it in one of them",
        )
    return MappingProxyType({**remote, **local.bindings})


def storable(text: str) -> str:
    """A text that came from outside, without what no database holds."""
    clean = text.replace("\x00", "\ufffd")
    return clean if clean.isascii() else clean.encode("utf-8", "replace").decode()


def _function(catalog: Catalog, binding: ToolBinding) -> ToolFunction:
    function = catalog.tool_function(binding.name)
    if function.context is None:
        return function
    raise BadInput(
        f"the local tool {binding.name!r} takes a ToolContext, which only Hands can give",
        where=binding.name,
        next_step="Leave the parameter out, or let Hands run the tool",
    )


def _failed(error: Exception) -> ExecutionResult:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    text = str(error) if isinstance(error, NerveError) else f"{type(error).__name__}: {error}"
    return failed_result(ToolFailed(storable(text)[:4096]), type=kind[:256])


def _kept(outcome: LocalOutcome, asked: dict[str, JsonValue]) -> JsonValue:
    return {
        **asked,
        "state": str(outcome.state),
        "effect": str(outcome.effect),
        "value": outcome.value,
        "text": outcome.text,
    }


def _same(receipt: JsonValue, asked: Mapping[str, JsonValue], where: str) -> Mapping[str, Any]:
    """The receipt, where it is of the call that is asked for now."""
    kept = cast("Mapping[str, Any]", receipt)
    if all(kept.get(name) == value for name, value in asked.items()):
        return kept
    raise Incompatible(
        f"the local tool {kept.get('tool')!r} was asked for before"
        f" and {asked['tool']!r} now, or with other arguments",
        where=where,
        next_step="Let the agent ask for the same things in the same order",
    )


def _restored(kept: Mapping[str, Any]) -> LocalOutcome:
    return LocalOutcome(
        state=ExecutionState(kept["state"]),
        effect=Effect(kept["effect"]),
        value=kept["value"],
        text=kept["text"],
    )
