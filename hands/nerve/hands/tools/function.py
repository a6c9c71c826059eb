"""Python functions as tools, and what each way of ending means for the effect.

returns a value                        SUCCEEDED, effect completed
returns a value that cannot be stored  SUCCEEDED with a placeholder and a code: the effect is there
returns None and is annotated `-> None`, or was declared so  SUCCEEDED with null
returns None otherwise, or something suspended (a coroutine, a generator)
                                       FAILED, effect unconfirmed: it stated no result
raises ToolFailed or a declared exception  FAILED, effect none: it proved the failure
raises anything else, SystemExit too   FAILED, effect unconfirmed
arguments do not fit the function      FAILED, effect none: it was not entered
async, over its time                   FAILED, effect unconfirmed: the coroutine is gone
in a thread, over its time             UNKNOWN: the thread cannot be stopped
cancelled by a cancel it can confirm   CANCELLED, effect unconfirmed
"""

import asyncio
import inspect
import traceback
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, get_type_hints

from pydantic import JsonValue

from nerve.common import faults
from nerve.common.clock import Clock, within
from nerve.common.logs import get_log
from nerve.hands.port import Ended, Pool, Run, current_run, ended
from nerve.hands.tools.context import FunctionContext
from nerve.hands.tools.threads import Contained, Threads, ThreadsClosed
from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import canonical_bytes, check_text, check_value
from nerve.protocol.catalog import Catalog
from nerve.protocol.errors import (
    InvalidArguments,
    InvalidJSON,
    JSONFault,
    NerveError,
    TooLarge,
    ToolFailed,
    UnknownTool,
)
from nerve.protocol.execution import (
    Effect,
    ExecutionResult,
    ExecutionState,
    Failure,
    failed_result,
    placeholder_result,
    value_result,
)
from nerve.protocol.signature import Function, ToolFunction

_log = get_log("nerve.hands.tools")

faults.register("hands", ["hands.tool.before_call", "hands.tool.after_call"])

MESSAGE_CHARACTERS_MAX = 2000


class FunctionTools:
    """The functions of one catalog."""

    def __init__(
        self, catalog: Catalog, *, route: str, clock: Clock, threads: int, result_bytes: int
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._threads = Threads(threads)
        self._thread_pool = Pool(
            name="threads",
            size=threads,
            full=f"all {threads} threads for synchronous tools of its Hands are in use",
        )
        self._result_bytes = result_bytes
        self._found = {
            (each.name, each.version): each
            for each in catalog.bindings(route)
            if catalog.has_function(each.name, each.version)
        }

    def find(self, name: str, version: str) -> ToolBinding | None:
        return self._found.get((name, version))

    def bindings(self) -> Sequence[ToolBinding]:
        return list(self._found.values())

    def pools(self, binding: ToolBinding) -> Sequence[Pool]:
        pools: list[Pool] = []
        if binding.concurrency is not None:
            pools.append(
                Pool(
                    name=f"tool:{binding.name}@{binding.version}",
                    size=binding.concurrency,
                    full=f"its tool may run {binding.concurrency} times at once in one Hands process,"
                    " and does",
                )
            )
        if not self._catalog.tool_function(binding.name, binding.version).is_async:
            pools.append(self._thread_pool)
        return pools

    def close(self) -> None:
        self._threads.close()

    async def run(self, run: Run) -> Ended:
        binding = run.binding
        try:
            function = self._catalog.tool_function(binding.name, binding.version)
            arguments = function.arguments(binding.name, run.command.arguments)
        except (InvalidArguments, UnknownTool) as error:
            return _not_entered(error)
        call = partial(function.invoke, arguments, FunctionContext(run))
        token = current_run.set(run)
        try:
            value = await self._called(run, function, call)
        except asyncio.CancelledError:
            # Somebody cancels this very task: the process gives up. Else it is the tool's own doing.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _cancelled(run)
        except ThreadsClosed:
            raise
        except _OverTime as late:
            return _over_time(run, function, late)
        except Contained as contained:
            return _raised(run, function, contained.error)
        except Exception as error:
            return _raised(run, function, error)
        finally:
            current_run.reset(token)
        return self._returned(function, value)

    async def _called(self, run: Run, function: ToolFunction, call: Function) -> Any:
        faults.point("hands.tool.before_call")
        limit = run.binding.timeout_ms
        if limit is None:
            value = await self._entered(run, function, call)
        else:
            value = await self._bounded(run, function, call, limit / 1000)
        faults.point("hands.tool.after_call")
        return value

    async def _bounded(
        self, run: Run, function: ToolFunction, call: Function, seconds: float
    ) -> Any:
        inner = asyncio.ensure_future(self._entered(run, function, call))
        try:
            async with within(self._clock, seconds):
                return await inner
        except TimeoutError as error:
            if inner.done() and not inner.cancelled() and inner.exception() is error:
                raise
            raise _OverTime(seconds) from error

    async def _entered(self, run: Run, function: ToolFunction, call: Function) -> Any:
        if not function.is_async:
            return await self._threads.run(call, partial(self._late, run, function))
        if run.binding.powers.cancellable:
            inner = asyncio.ensure_future(_contained(call))
            run.on_cancel(inner.cancel)
            return await inner
        return await _contained(call)

    def _late(
        self, run: Run, function: ToolFunction, value: Any, error: BaseException | None
    ) -> None:
        """A thread that ran over its time came to its end: too late to count, but worth knowing."""
        run.late(
            self._returned(function, value) if error is None else _raised(run, function, error)
        )

    def _returned(self, function: ToolFunction, value: Any) -> Ended:
        if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
            if inspect.iscoroutine(value):
                value.close()
            return _unstated("suspended_return", f"it returned a {type(value).__name__}, no result")
        if value is None and not returns_nothing(function.call):
            return _unstated("empty_return", "it returned nothing where a result was expected")
        result = self._stored(value)
        state = ExecutionState.SUCCEEDED if result.stated == "success" else ExecutionState.FAILED
        return ended(state, Effect.COMPLETED, result, code=result.placeholder)

    def _stored(self, value: Any) -> ExecutionResult:
        try:
            if isinstance(value, ExecutionResult):
                return self._stated(value)
            return value_result(value, bytes_max=self._result_bytes)
        except NerveError as error:
            return placeholder_result(error)
        except Exception as error:
            # A value of a hostile type: reading it raises. The tool did run.
            return placeholder_result(
                InvalidJSON(
                    f"the result cannot be read: {type(error).__name__}",
                    reason=JSONFault.TYPE,
                    where="/result",
                    next_step="return text, numbers, booleans, None, lists and dictionaries",
                )
            )

    def _stated(self, result: ExecutionResult) -> ExecutionResult:
        checked = check_value(result.to_json(), "/result")
        size = len(canonical_bytes(checked))
        if size > self._result_bytes:
            raise TooLarge(
                f"a result of {size} bytes; the limit is {self._result_bytes}",
                where="/result",
                next_step="return less, or write it to the output",
            )
        return result


class _OverTime(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(f"it ran longer than its limit of {seconds:g} s")


async def _contained(call: Function) -> Any:
    try:
        return await call()
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        # SystemExit and KeyboardInterrupt would end the loop and every other tool with it.
        raise Contained(error) from error


@lru_cache(maxsize=1024)
def returns_nothing(function: Function) -> bool:
    """Whether the function is annotated to return None, so that None is its stated result."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        hint = get_type_hints(target).get("return", inspect.Signature.empty)
    except Exception:
        return False
    members = getattr(hint, "__args__", ())
    return hint is type(None) or hint is JsonValue or type(None) in members


def _not_entered(error: NerveError) -> Ended:
    result = failed_result(error)
    return ended(
        ExecutionState.FAILED, Effect.NONE, result, code=error.code, reason=error.message[:4096]
    )


def _unstated(code: str, what: str) -> Ended:
    failure = Failure(
        code=code,
        message=f"The tool ended without stating a result: {what}. Its effect is unconfirmed.",
        next_step="return a value, or annotate the function with -> None",
    )
    result = ExecutionResult(stated="error", failure=failure)
    return ended(
        ExecutionState.FAILED, Effect.UNCONFIRMED, result, code=code, reason=failure.message
    )


def _raised(run: Run, function: ToolFunction, error: BaseException) -> Ended:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"[:256]
    if isinstance(error, ToolFailed):
        return _proven(ToolFailed.code, error.message, kind, error)
    if function.proves(error):
        return _proven(ToolFailed.code, _shown(error), kind, None)
    _log.warning(
        "a tool raised an exception that proves nothing",
        cause=f"tool:{run.binding.name}",
        tool=run.binding.name,
        execution=run.command.execution,
        trace=_trace(error),
    )
    failure = Failure(
        code="tool_raised", message=_text(f"{kind}: {_shown(error)}"), type=_text(kind)
    )
    result = ExecutionResult(stated="error", failure=failure)
    return ended(
        ExecutionState.FAILED,
        Effect.UNCONFIRMED,
        result,
        code=failure.code,
        reason=failure.message,
    )


def _proven(code: str, message: str, kind: str, error: ToolFailed | None) -> Ended:
    failure = Failure(code=code, message=_text(message), type=_text(kind))
    if error is not None:
        try:
            failure = Failure.of(error, type=_text(kind))
        except (NerveError, ValueError):
            pass  # Its details cannot be stored; the message says what matters.
    result = ExecutionResult(stated="error", failure=failure)
    return ended(
        ExecutionState.FAILED, Effect.NONE, result, code=failure.code, reason=failure.message
    )


def _cancelled(run: Run) -> Ended:
    if not run.cancel_requested:
        failure = Failure(code="tool_raised", message="asyncio.CancelledError: it cancelled itself")
        result = ExecutionResult(stated="error", failure=failure)
        return ended(
            ExecutionState.FAILED,
            Effect.UNCONFIRMED,
            result,
            code=failure.code,
            reason=failure.message,
        )
    failure = Failure(code="cancelled", message="the tool stopped because a cancel was requested")
    result = ExecutionResult(stated="cancelled", failure=failure)
    return ended(
        ExecutionState.CANCELLED,
        Effect.UNCONFIRMED,
        result,
        code=failure.code,
        reason=failure.message,
    )


def _over_time(run: Run, function: ToolFunction, late: _OverTime) -> Ended:
    failure = Failure(code="timeout", message=str(late))
    result = ExecutionResult(stated="error", failure=failure)
    state = ExecutionState.FAILED if function.is_async else ExecutionState.UNKNOWN
    return ended(state, Effect.UNCONFIRMED, result, code=failure.code, reason=failure.message)


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error)[-8:])[-4000:]
    except Exception:
        return type(error).__name__


def _shown(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be read)"


def _text(text: str) -> str:
    """What can be stored of a hostile error text."""
    shown = text[:MESSAGE_CHARACTERS_MAX].replace("\x00", "\ufffd")
    try:
        return check_text(shown, "message")
    except NerveError:
        return shown.encode("utf-8", "replace").decode("utf-8", "replace")
