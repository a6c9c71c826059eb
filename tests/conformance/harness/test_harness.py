"""What every harness owes its host, shown on each kernel: any crash, stop or refusal changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from nerve.brain.agents.chat import calls_of
from nerve.brain.agents.function import Context, FunctionAgent, function_agent
from nerve.brain.agents.models import ModelAnswer, ModelRequest, OnDelta
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.harness import Boundary, Finished, Harness, Parked, Paused
from nerve.brain.testing import Conductor, Crash, Ended, MemoryHost, new_turn
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message
from nerve.protocol.errors import Fenced

SCRIPT = [
    {"text": "Looking.", "calls": [{"tool": "look", "arguments": {"place": "Oslo"}}] * 2},
    {"calls": [{"tool": "look", "arguments": {"where": 1}}]},  # repaired in the next round
    {"calls": [{"tool": "count", "arguments": {"words": "a b"}}]},
    {
        "calls": [
            {"tool": "count", "arguments": {"words": "a b c"}},
            {"tool": "look", "arguments": {"place": "Rome"}},
        ]
    },
    "It is sunny.",
]


def look(place: str) -> str:
    return f"sunny in {place}"


def remote_tools() -> Catalog:
    catalog = Catalog(route="hands")
    catalog.tool(look)
    return catalog


def local_tools(ran: list[str]) -> Catalog:
    catalog = Catalog(route="hands")

    @catalog.tool(idempotent_start=True)
    async def count(words: str) -> int:
        ran.append(words)
        return len(words.split())

    return catalog


class CountingModel:
    """Counts how often each question was asked."""

    name = "counting"

    def __init__(self, script: Sequence[Any], asked: list[str]) -> None:
        self._model = ScriptedModel(script)
        self._asked = asked

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self._asked.append(request.key.partition("/")[2])
        return await self._model.complete(request, on_delta)


@dataclass
class Case:
    """A harness as any process would build it, and what its Turn must come to."""

    make: Callable[[], Harness]
    remote: Sequence[str]
    answer: str
    asked: list[str]

    def conductor(self) -> Conductor:
        return Conductor(self.make, {"look": look})


def react_case() -> Case:
    asked: list[str] = []
    ran: list[str] = []

    def make() -> ReactAgent:
        return ReactAgent(
            "weather",
            model=CountingModel(SCRIPT, asked),
            tools=remote_tools(),
            local_tools=local_tools(ran),
        )

    return Case(make, ["look", "look", "look"], "It is sunny.", asked)


def function_case() -> Case:
    asked: list[str] = []

    async def model(place: str) -> str:
        asked.append(f"step:{place}")
        return f"in {place}"

    async def body(ctx: Context, input: Message) -> Mapping[str, Any]:
        first = await ctx.step("Oslo", model, "Oslo")
        left, right = await ctx.gather(
            ctx.call("look", place="Oslo"), ctx.call("look", place="Rome")
        )
        at = await ctx.now()
        last = await ctx.call("look", place=f"{first} at {at > 0} {await ctx.random() < 1}")
        words = await ctx.call("count", words="a b c")
        return {"left": left, "right": right, "last": last, "words": words}

    def make() -> FunctionAgent:
        agent = function_agent("report", tools=remote_tools(), local_tools=local_tools([]))
        return agent(body)

    answer = '{"last":"sunny in in Oslo at True True","left":"sunny in Oslo",'
    answer += '"right":"sunny in Rome","words":3}'
    return Case(make, ["look", "look", "look"], answer, asked)


CASES = {"react": react_case, "function": function_case}


@pytest.fixture(params=sorted(CASES))
def new_case(request: pytest.FixtureRequest) -> Callable[[], Case]:
    return CASES[cast("str", request.param)]


def check(case: Case, conductor: Conductor, ended: Ended) -> None:
    assert isinstance(ended.outcome, Finished)
    assert ended.text == case.answer
    assert conductor.ran == case.remote
    check_history(conductor)


def check_history(conductor: Conductor) -> None:
    """Every call has its result before anything else is said: models accept nothing less."""
    waiting: set[str] = set()
    for item in conductor.frame().entries:
        entry = cast("dict[str, Any]", item)
        if entry["role"] in ("tool", "result"):
            waiting.remove(entry["call"])
        elif entry["role"] == "call":
            waiting.add(entry["call"])
        else:
            assert not waiting, entry
            waiting = {cast("str", call["id"]) for call in calls_of(entry)}
    assert not waiting


async def test_a_turn_ends_with_its_answer_when_every_run_is_rebuilt(
    new_case: Callable[[], Case],
) -> None:
    case = new_case()
    conductor = case.conductor()
    check(case, conductor, await conductor.turn("Go"))


@pytest.mark.report("U10")
@pytest.mark.law(5)
@pytest.mark.capability("C3.1")
async def test_a_crash_at_any_place_repeats_no_committed_answer_and_no_tool(
    new_case: Callable[[], Case],
) -> None:
    place, crashed = 0, True
    while crashed:
        place += 1
        case = new_case()
        conductor = case.conductor()
        host = MemoryHost(crash_at=place)
        check(case, conductor, await conductor.turn("Go", host=host))
        crashed = host.crashed
        # Only the answer that was on its way at the crash may be asked for again.
        assert len(case.asked) - len(set(case.asked)) <= 1
        assert place < 100
    assert place > 10


async def test_a_stop_at_any_boundary_appends_nothing_and_costs_nothing(
    new_case: Callable[[], Case],
) -> None:
    for place in range(8):
        case = new_case()
        conductor = case.conductor()
        boundaries = [Boundary.GO_ON] * place + [Boundary.STOP]
        ended = await conductor.turn("Go", host=MemoryHost(boundaries=boundaries))
        check(case, conductor, ended)
        assert sorted(set(case.asked)) == sorted(case.asked)


async def test_a_stop_before_anything_is_a_pause(new_case: Callable[[], Case]) -> None:
    turn = new_turn("Go", MemoryHost(boundaries=[Boundary.STOP]))
    conductor = new_case().conductor()
    assert isinstance(await conductor.step(turn), Paused)
    assert conductor.entries == []


async def test_a_refused_commit_leaves_the_harness_as_it_was_raised(
    new_case: Callable[[], Case],
) -> None:
    refusal = Fenced("another host owns the Thread", where="thread")
    conductor = new_case().conductor()
    turn = new_turn("Go", MemoryHost(refuse=refusal))
    with pytest.raises(Fenced) as raised:
        for _ in range(10):
            await conductor.step(turn)
    assert raised.value is refusal


@pytest.mark.report("U68")
async def test_settlement_at_any_park_leaves_a_history_that_the_next_turn_can_use(
    new_case: Callable[[], Case],
) -> None:
    for parks in range(1, 3):
        for known in (0, 1):
            case = new_case()
            conductor = case.conductor()
            turn = new_turn("Go")
            for _ in range(parks):
                assert isinstance(await conductor.step(turn), Parked)
            checkpoint = case.make().settle(conductor.frame(), turn.results[:known])
            conductor.append(checkpoint)
            check_history(conductor)
            check_settled_twice(case, conductor)
            conductor.ran.clear()
            check(case, conductor, await conductor.turn("Again"))


def check_settled_twice(case: Case, conductor: Conductor) -> None:
    again = case.make().settle(conductor.frame(), [])
    assert list(again.entries) == []


async def test_settlement_of_an_empty_thread_appends_nothing(
    new_case: Callable[[], Case],
) -> None:
    case = new_case()
    assert list(case.make().settle(case.conductor().frame(), []).entries) == []


@pytest.mark.capability("C4.3")
async def test_turns_of_one_thread_follow_each_other(new_case: Callable[[], Case]) -> None:
    case = new_case()
    conductor = case.conductor()
    for _ in range(3):
        check(case, conductor, await conductor.turn("Go"))
        conductor.ran.clear()


async def test_a_crash_in_the_host_leaves_as_it_came(new_case: Callable[[], Case]) -> None:
    conductor = new_case().conductor()
    turn = new_turn("Go", MemoryHost(crash_at=1))
    with pytest.raises(Crash):
        await conductor.make().advance(conductor.frame(), turn.facts(), turn.host)
