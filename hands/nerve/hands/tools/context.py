"""What a running function knows about its own execution."""

from collections.abc import Coroutine, Generator
from typing import Any

from nerve.hands.port import Run, current_run
from nerve.protocol.errors import WrongState
from nerve.protocol.signature import ToolContext


class FunctionContext(ToolContext):
    def __init__(self, run: Run) -> None:
        self._run = run
        self.execution = run.command.execution
        self.attempt = run.attempt
        self.origin = run.command.origin

    def write(  # pyright: ignore[reportIncompatibleMethodOverride]  # awaiting it is optional
        self, data: bytes | str
    ) -> Coroutine[Any, Any, None]:
        """Done when it returns: a function in a thread need not await it."""
        self._run.write(data.encode() if isinstance(data, str) else data)
        return _Done()

    @property
    def cancel_requested(self) -> bool:
        return self._run.cancel_requested


class _Done(Coroutine[Any, Any, None]):
    """Awaited or not, there is nothing left to do."""

    def __await__(self) -> Generator[Any, None, None]:
        return iter(())  # type: ignore[return-value]  # an empty iterator ends at once

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        raise StopIteration

    def close(self) -> None:
        pass


def tool_context() -> ToolContext:
    """The context of the tool that calls this. Raises WrongState outside of one."""
    run = current_run.get()
    if run is None:
        raise WrongState(
            "no tool runs here",
            where="tool_context",
            next_step="call it from inside a tool, in the task or thread that Hands started",
        )
    return FunctionContext(run)
