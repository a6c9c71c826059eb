"""Function agents: durable steps, calls by ordinal, replay that is checked, waits that pass through."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from pydantic import BaseModel

from nerve.brain.agents.function import CallFailed, Context, FunctionAgent, function_agent
from nerve.brain.agents.models import FailureClass, classify
from nerve.brain.harness import Failed, Finished, Parked
from nerve.brain.testing import Conductor, MemoryHost, RunningTurn, new_turn
from nerve.common.clock import VirtualClock
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message, StructuredPart, TextPart
from nerve.protocol.errors import BadInput, Fenced, Incompatible, InvalidArguments, ToolFailed
from nerve.protocol.execution import Effect, ExecutionState

Body = Callable[[Context, Message], Awaitable[Any]]


def add(left: int, right: int) -> int:
    return left + right


def fail(proven: bool) -> int:
    if proven:
        raise ToolFailed("no such thing")
    raise RuntimeError("it broke")


def conductor_of(body: Body, **options: Any) -> Conductor:
    def make() -> FunctionAgent:
        catalog = Catalog()
        catalog.tool(add)
        catalog.tool(fail)
        return function_agent("report", tools=catalog, **options)(body)

    return Conductor(make, {"add": add, "fail": fail})


async def parked(conductor: Conductor, turn: RunningTurn) -> list[str]:
    outcome = await conductor.step(turn)
    assert isinstance(outcome, Parked)
    return [call.call_id for call in outcome.calls]


async def test_calls_follow_each_other_and_replay_by_their_ordinal() -> None:
    async def body(ctx: Context, input: Message) -> str:
        total = 0
        for number in range(3):
            total = cast("int", await ctx.call("add", left=total, right=number))
        return f"{input.text}: {total}"

    conductor = conductor_of(body)
    assert (await conductor.turn("Sum")).text == "Sum: 3"
    assert conductor.ran == ["add"] * 3


async def test_gathered_calls_park_together() -> None:
    async def body(ctx: Context, input: Message) -> Any:
        async def double(number: int) -> int:
            return number * 2

        return await ctx.gather(
            ctx.call("add", left=1, right=2),
            ctx.step("double", double, 4),
            ctx.call("add", left=3, right=4),
        )

    conductor = conductor_of(body)
    turn = new_turn("Go")
    assert await parked(conductor, turn) == ["call_1", "call_2"]
    outcome = await conductor.step(turn)
    assert isinstance(outcome, Finished)
    assert outcome.output.text == "[3,8,7]"


async def test_a_call_made_early_starts_at_the_next_wait() -> None:
    async def body(ctx: Context, input: Message) -> Any:
        early = ctx.call("add", left=1, right=2)
        late = await ctx.call("add", left=3, right=4)
        return [await early, late]

    conductor = conductor_of(body)
    turn = new_turn("Go")
    assert await parked(conductor, turn) == ["call_1", "call_2"]
    assert isinstance(await conductor.step(turn), Finished)


async def test_a_task_group_of_the_body_lets_the_wait_pass() -> None:
    async def body(ctx: Context, input: Message) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(nap())
            call = ctx.call("add", left=1, right=2)
            waiting = group.create_task(wait_for(call))
        return waiting.result()

    async def nap() -> None:
        await asyncio.sleep(0)

    async def wait_for(call: Awaitable[Any]) -> Any:
        return await call

    assert (await conductor_of(body).turn("Go")).text == "3"


async def test_a_body_cannot_swallow_the_wait() -> None:
    async def body(ctx: Context, input: Message) -> Any:
        value: Any = None
        try:
            value = await ctx.call("add", left=1, right=2)
        except Exception:
            return "caught"
        except BaseException:  # noqa: B036
            with contextlib.suppress(Exception):
                await ctx.step("never", add, 1, 1)
        return value

    conductor = conductor_of(body)
    assert (await conductor.turn("Go")).text == "3"


async def test_steps_run_once_and_return_what_a_repeat_returns() -> None:
    ran: list[str] = []

    class Point(BaseModel):
        x: int

    def plain() -> tuple[int, int]:
        ran.append("plain")
        return (1, 2)

    async def model() -> Point:
        ran.append("model")
        return Point(x=3)

    async def body(ctx: Context, input: Message) -> Any:
        first = await ctx.step("one", plain)
        again = await ctx.step("one", model)
        nothing = await ctx.step("two", lambda: None)
        total = await ctx.call("add", left=first[0], right=again["x"])
        return [first, again, nothing, total]

    conductor = conductor_of(body)
    ended = await conductor.turn("Go")
    assert ended.text == '[[1,2],{"x":3},null,4]'
    assert ran == ["plain", "model"]
    assert list(ended.host.receipts) == ["step:one", "step:one#2", "step:two"]


async def test_time_and_chance_are_the_same_at_each_repeat() -> None:
    clock = VirtualClock(now_ms=5)
    seen: list[Any] = []

    async def body(ctx: Context, input: Message) -> Any:
        seen.append((await ctx.now(), await ctx.random(), await ctx.now()))
        await ctx.call("add", left=1, right=2)
        return "done"

    conductor = conductor_of(body, clock=clock)
    turn = new_turn("Go")
    await conductor.step(turn)
    await clock.advance(10)
    await conductor.step(turn)
    assert seen[0] == seen[1]
    assert seen[0][0] == 5
    assert sorted(turn.host.receipts) == ["now:1", "now:2", "random:1"]


@pytest.mark.parametrize(("proven", "effect"), [(True, Effect.NONE), (False, Effect.UNCONFIRMED)])
async def test_a_failed_call_says_its_effect_and_can_be_caught(
    proven: bool, effect: Effect
) -> None:
    async def body(ctx: Context, input: Message) -> Any:
        try:
            await ctx.call("fail", proven=proven)
        except CallFailed as error:
            assert error.outcome.effect is effect
        outcome = await ctx.call("fail", proven=proven).outcome()
        assert outcome.state is ExecutionState.FAILED
        return outcome.text

    ended = await conductor_of(body).turn("Go")
    assert "changed nothing" in ended.text or "may have happened" in ended.text


async def test_a_failed_call_that_is_not_caught_fails_the_turn_and_the_next_one_goes_on() -> None:
    async def body(ctx: Context, input: Message) -> Any:
        if input.text == "well":
            return [entry["role"] for entry in ctx.history()]
        return await ctx.call("fail", proven=True)

    conductor = conductor_of(body)
    ended = await conductor.turn("badly")
    assert isinstance(ended.outcome, Failed)
    assert ended.outcome.code == "tool_call_failed"
    assert "no such thing" in ended.outcome.reason
    assert (await conductor.turn("well")).text == '["user","assistant"]'


def asks(left: int) -> Body:
    async def body(ctx: Context, input: Message) -> Any:
        return await ctx.call("add", left=left, right=1)

    return body


async def ends(ctx: Context, input: Message) -> str:
    return "nothing to do"


async def asks_something_else(ctx: Context, input: Message) -> Any:
    return await ctx.call("fail", proven=True)


async def catches_everything(ctx: Context, input: Message) -> Any:
    try:
        return await ctx.call("add", left=2, right=1)
    except Exception:
        return "caught"


@pytest.mark.parametrize(
    ("second", "named"),
    [
        (asks(2), 'add({"left":2,"right":1})'),
        (asks_something_else, 'fail({"proven":true})'),
        (ends, "the end of the agent"),
        (catches_everything, 'add({"left":2,"right":1})'),
    ],
)
async def test_a_repeat_that_asks_for_something_else_is_found_and_both_are_named(
    second: Body, named: str
) -> None:
    conductor = conductor_of(asks(1))
    turn = new_turn("Go")
    await conductor.step(turn)
    changed = conductor_of(second)
    changed.entries, changed.position = conductor.entries, conductor.position
    with pytest.raises(Incompatible) as raised:
        await changed.step(turn)
    assert 'add({"left":1,"right":1})' in str(raised.value)
    assert named in str(raised.value)
    assert classify(raised.value) is FailureClass.PERMANENT


async def test_an_unawaited_call_is_named() -> None:
    async def body(ctx: Context, input: Message) -> str:
        ctx.call("add", left=1, right=2)
        return "done"

    with pytest.raises(BadInput, match="without awaiting its call of 'add'"):
        await conductor_of(body).step(new_turn("Go"))


async def test_bad_calls_are_errors_of_the_program() -> None:
    async def unknown(ctx: Context, input: Message) -> Any:
        return await ctx.call("subtract", left=1, right=2)

    async def unfit(ctx: Context, input: Message) -> Any:
        return await ctx.call("add", left="one", right=2)

    async def nothing(ctx: Context, input: Message) -> Any:
        return None

    for body, kind in ((unknown, BadInput), (unfit, InvalidArguments), (nothing, BadInput)):
        with pytest.raises(kind) as raised:
            await conductor_of(body).step(new_turn("Go"))
        assert classify(raised.value) is FailureClass.PERMANENT


async def test_a_body_cannot_catch_the_loss_of_its_thread() -> None:
    ran: list[int] = []

    async def body(ctx: Context, input: Message) -> Any:
        for number in range(3):
            with contextlib.suppress(Exception):
                await ctx.step("work", ran.append, number)
        return "done"

    refusal = Fenced("another host owns the Thread", where="thread")
    with pytest.raises(Fenced):
        await conductor_of(body).step(new_turn("Go", MemoryHost(refuse=refusal)))
    assert ran == [0]


async def test_an_error_of_the_body_comes_out_as_it_is() -> None:
    async def body(ctx: Context, input: Message) -> Any:
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError) as raised:
        await conductor_of(body).step(new_turn("Go"))
    assert classify(raised.value) is FailureClass.TRANSIENT


async def test_a_failing_step_leaves_no_other_running_alone() -> None:
    stopped: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append("slow")

    async def broken() -> None:
        raise TimeoutError

    async def body(ctx: Context, input: Message) -> Any:
        return await ctx.gather(ctx.step("slow", slow), ctx.step("broken", broken))

    with pytest.raises(TimeoutError):
        await conductor_of(body).step(new_turn("Go"))
    assert stopped == ["slow"]


@pytest.mark.parametrize(
    ("returned", "part"),
    [
        ("text", TextPart(text="text")),
        (Message.assistant("said"), TextPart(text="said")),
        ({"a": [1, 2]}, StructuredPart(value={"a": [1, 2]})),
        (7, StructuredPart(value=7)),
    ],
)
async def test_a_body_returns_text_a_message_or_a_value(returned: Any, part: Any) -> None:
    async def body(ctx: Context, input: Message) -> Any:
        return returned

    ended = await conductor_of(body).turn("Go")
    assert isinstance(ended.outcome, Finished)
    assert ended.outcome.output.parts == (part,)
