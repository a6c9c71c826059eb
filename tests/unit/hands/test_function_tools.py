"""What each way in which a Python function ends means for state and effect."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nerve.protocol.content import TextPart
from nerve.protocol.errors import ToolFailed
from nerve.protocol.execution import Effect, ExecutionResult, ExecutionState, told
from support.hands_tools import ended, outcome, prepared
from support.waiting import soon, until

S = ExecutionState


class Refused(Exception):
    """Declared by its tool: it proves that nothing happened."""


async def test_a_returned_value_is_the_result() -> None:
    async def tool(n: int) -> dict[str, int]:
        return {"n": n}

    end = await ended(tool, {"n": 3})
    assert outcome(end) == (S.SUCCEEDED, Effect.COMPLETED, None)
    assert end.result.value == {"n": 3}


@pytest.mark.capability("D16.1")
async def test_native_content_metadata_and_stated_state_are_kept() -> None:
    async def tool() -> ExecutionResult:
        return ExecutionResult(
            content=(TextPart(text="rich"),), value=[1], metadata={"took": 3}, stated="success"
        )

    end = await ended(tool)
    assert end.result.content == (TextPart(text="rich"),)
    assert (end.result.metadata, outcome(end)[0]) == ({"took": 3}, S.SUCCEEDED)


@pytest.mark.capability("D16.1")
async def test_a_result_that_states_a_failure_is_one_with_its_effect() -> None:
    async def tool() -> ExecutionResult:
        return ExecutionResult(value="half done", stated="error")

    assert outcome(await ended(tool))[:2] == (S.FAILED, Effect.COMPLETED)


def _loop() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


class Hostile(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.capability("D16.2")
@pytest.mark.rule(20)
@pytest.mark.report("U104", "U106", "U107", "U51")
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("a\x00b", "result_nul"),
        ("\ud800", "result_surrogate"),
        (float("nan"), "result_lossy_number"),
        (float("inf"), "result_lossy_number"),
        (2**60, "result_lossy_number"),
        (b"bytes", "result_type"),
        (object(), "result_type"),
        ({1: "x"}, "result_key"),
        (_loop(), "result_cycle"),
        ("x" * 2000, "result_too_large"),
        (Hostile(a=1), "result_type"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "value",
)
async def test_a_result_that_cannot_be_stored_is_a_success_with_a_placeholder(
    value: object, code: str
) -> None:
    async def tool() -> Any:
        return value

    end = await ended(tool)
    assert outcome(end) == (S.SUCCEEDED, Effect.COMPLETED, code)
    assert "could not be stored" in end.result.text


async def test_none_is_a_result_only_where_it_was_announced() -> None:
    async def announced() -> None: ...

    async def optional() -> str | None:
        return None

    async def silent():  # type: ignore[no-untyped-def]
        pass

    async def broken() -> str:
        return None  # type: ignore[return-value]

    assert outcome(await ended(announced))[0] is S.SUCCEEDED
    assert outcome(await ended(optional))[0] is S.SUCCEEDED
    for tool in (silent, broken):
        assert outcome(await ended(tool)) == (S.FAILED, Effect.UNCONFIRMED, "empty_return")


@pytest.mark.capability("D16.3")
async def test_a_suspended_return_leaves_the_effect_unconfirmed() -> None:
    async def later() -> str:
        return "x"

    def coroutine() -> Any:
        return later()

    def generator() -> Any:
        def steps() -> Iterator[int]:
            yield 1

        return steps()

    for tool in (coroutine, generator):
        assert outcome(await ended(tool)) == (S.FAILED, Effect.UNCONFIRMED, "suspended_return")


@pytest.mark.capability("D16.3")
@pytest.mark.rule(20)
async def test_an_undeclared_exception_leaves_the_effect_unconfirmed_and_the_model_is_told() -> (
    None
):
    async def tool() -> str:
        raise ConnectionError("reset after sending")

    end = await ended(tool)
    assert outcome(end) == (S.FAILED, Effect.UNCONFIRMED, "tool_raised")
    text = told(end.move.state, end.move.effect, end.result)
    assert "unconfirmed" in text and "reset after sending" in text


@pytest.mark.capability("D16.4")
async def test_a_proven_failure_is_declared_by_the_binding_or_by_tool_failed() -> None:
    async def declared() -> str:
        raise Refused("nothing was sent")

    async def explicit() -> str:
        raise ToolFailed("no such account", {"account": "7"})

    assert outcome(await ended(declared, failures=[Refused])) == (
        S.FAILED,
        Effect.NONE,
        "tool_failed",
    )
    end = await ended(explicit)
    assert outcome(end) == (S.FAILED, Effect.NONE, "tool_failed")
    assert end.result.failure is not None and end.result.failure.details == {"account": "7"}


@pytest.mark.report("U105")
@pytest.mark.parametrize("text", ["\x00 nul", "\ud800", "x" * 100_000])
async def test_a_hostile_error_text_is_stored_in_a_form_that_can_be(text: str) -> None:
    async def raised() -> str:
        raise ValueError(text)

    async def failed() -> str:
        raise ToolFailed(text, {"text": text})

    for tool in (raised, failed):
        end = await ended(tool)
        assert end.move.state is S.FAILED
        assert end.result.failure is not None
        end.result.failure.message.encode()
        assert "\x00" not in end.result.failure.message


async def test_an_error_that_cannot_even_be_printed_is_contained() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("again")

    async def tool() -> str:
        raise Unprintable

    assert outcome(await ended(tool)) == (S.FAILED, Effect.UNCONFIRMED, "tool_raised")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
async def test_what_would_end_the_process_ends_only_the_tool(error: BaseException) -> None:
    async def soft() -> str:
        raise error

    def hard() -> str:
        raise error

    for tool in (soft, hard):
        assert outcome(await ended(tool)) == (S.FAILED, Effect.UNCONFIRMED, "tool_raised")


async def test_a_tool_that_cancels_itself_is_no_confirmed_cancel() -> None:
    async def tool() -> str:
        raise asyncio.CancelledError

    assert outcome(await ended(tool)) == (S.FAILED, Effect.UNCONFIRMED, "tool_raised")


async def test_cancelling_the_run_itself_says_nothing_about_the_outcome() -> None:
    async def tool() -> str:
        await asyncio.Event().wait()
        return "never"

    tools, run = prepared(tool)
    task = asyncio.ensure_future(tools.run(run))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("arguments", [{}, {"n": "three"}, {"n": 1, "m": 2}, {"n": None}], ids=str)
async def test_arguments_that_do_not_fit_never_enter_the_tool(arguments: dict[str, Any]) -> None:
    entered: list[int] = []

    async def tool(n: int) -> int:
        entered.append(n)
        return n

    assert outcome(await ended(tool, arguments)) == (S.FAILED, Effect.NONE, "invalid_arguments")
    assert entered == []


async def test_a_coroutine_over_its_time_is_gone_and_its_effect_unconfirmed() -> None:
    async def tool() -> str:
        await asyncio.Event().wait()
        return "never"

    assert outcome(await ended(tool, timeout_seconds=0.05)) == (
        S.FAILED,
        Effect.UNCONFIRMED,
        "timeout",
    )


@pytest.mark.rule(20)
async def test_a_thread_over_its_time_is_unknown_since_it_cannot_be_stopped() -> None:
    release = threading.Event()

    def tool() -> str:
        release.wait(20)
        return "late"

    tools, run = prepared(tool, timeout_seconds=0.05)
    end = await soon(tools.run(run))
    assert outcome(end) == (S.UNKNOWN, Effect.UNCONFIRMED, "timeout")
    release.set()
    await until(lambda: run.lates, "its late end was told")
    assert outcome(run.lates[0])[0] is S.SUCCEEDED and run.lates[0].result.value == "late"
    tools.close()


async def test_a_timeout_that_the_tool_raises_is_its_own() -> None:
    async def tool() -> str:
        raise TimeoutError("upstream")

    assert outcome(await ended(tool, timeout_seconds=5)) == (
        S.FAILED,
        Effect.UNCONFIRMED,
        "tool_raised",
    )
