"""ReactAgent: repair, limits, structured answers, several calls at once, local tools, previews."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from pydantic import BaseModel

from nerve.brain.agents.models import (
    Delta,
    DeltaKind,
    Finish,
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelCall,
    ModelRequest,
    OnDelta,
)
from nerve.brain.agents.react import ReactAgent
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.harness import Boundary, Failed, Finished, Frame, Parked, Usage
from nerve.brain.testing import Conductor, MemoryHost, new_turn
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import ImagePart, StructuredPart
from nerve.protocol.errors import BadInput, Damaged, InvalidName

Entry = dict[str, Any]


def look(place: str, days: int = 1) -> str:
    return f"sunny in {place} for {days}"


def tools() -> Catalog:
    catalog = Catalog()
    catalog.tool(look)
    return catalog


def conductor_of(script: Any, **options: Any) -> Conductor:
    model = script if hasattr(script, "complete") else ScriptedModel(script)
    return Conductor(
        lambda: ReactAgent("weather", model=model, tools=tools(), **options), {"look": look}
    )


def call(tool: str = "look", /, **arguments: Any) -> Entry:
    return {"tool": tool, "arguments": arguments}


def raw(text: str, tool: str = "look") -> ModelAnswer:
    return ModelAnswer(calls=[ModelCall(tool=tool, arguments=text)])


def entries_of(conductor: Conductor) -> list[Entry]:
    return cast("list[Entry]", conductor.frame().entries)


def told(conductor: Conductor) -> list[str]:
    return [entry["text"] for entry in entries_of(conductor) if entry["role"] == "tool"]


async def test_several_calls_of_one_answer_run_together_and_keep_their_order() -> None:
    conductor = conductor_of(
        [{"text": "I look.", "calls": [call(place="Oslo"), call(place="Rome", days=2)]}, "Done."]
    )
    ended = await conductor.turn("Go")
    assert ended.text == "Done."
    assert [message.text for message in ended.messages] == ["I look.", "Done."]
    assert told(conductor) == ["sunny in Oslo for 1", "sunny in Rome for 2"]
    assert [each.call_id for each in ended.calls] == ["call_1_1", "call_1_2"]
    assert ended.iterations == 2


@pytest.mark.report("U107", "U108", "U110", "U104", "U106")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"place": "Os',
        '{"place": "a", "place": "b"}',
        '{"place": "a"} {"place": "b"}',
        '\ufeff{"place": "a"}',
        '{"place": "a",}',
        '{"place": "a", "days": NaN}',
        '{"place": "a", "days": 1e400}',
        '{"place": "a", "days": 9007199254740993}',
        '{"place": "a\\u0000"}',
        '{"place": "a\\ud800"}',
        '{"place": "\ud800"}',
        '["place"]',
        '{"place": 7}',
        '{"town": "Oslo"}',
        "{}",
        "null",
        "",
        "[" * 100 + "]" * 100,
        '{"place": "' + "x" * 800_000 + '"}',
    ],
)
async def test_arguments_that_do_not_fit_go_back_to_the_model_and_never_run(
    arguments: str,
) -> None:
    conductor = conductor_of([raw(arguments), raw('{"place": "Oslo"}'), ModelAnswer(text="Done.")])
    ended = await conductor.turn("Go")
    assert ended.text == "Done."
    assert conductor.ran == ["look"]
    assert told(conductor)[0].startswith("The call was not run: ")
    assert told(conductor)[1:] == ["sunny in Oslo for 1"]
    assert ended.iterations == 3


@pytest.mark.report("U51", "U52")
async def test_arguments_over_the_limit_are_refused_with_size_and_limit() -> None:
    big = '{"place": "' + "x" * 800_000 + '"}'
    conductor = conductor_of([raw(big), ModelAnswer(text="Done.")])
    await conductor.turn("Go")
    assert "800013 bytes; the limit is 786432" in told(conductor)[0]
    assert len(repr(conductor.entries)) < 10_000


async def test_an_unknown_tool_is_named_with_the_ones_there_are() -> None:
    conductor = conductor_of([raw("{}", "forget\x00 \ud800"), ModelAnswer(text="Done.")])
    assert (await conductor.turn("Go")).text == "Done."
    assert "The tools are: look" in told(conductor)[0]


async def test_a_good_call_beside_a_bad_one_runs() -> None:
    answer = ModelAnswer(
        calls=[
            ModelCall(tool="look", arguments='{"place'),
            ModelCall(tool="look", arguments={"place": "Oslo"}),
        ]
    )
    conductor = conductor_of([answer, ModelAnswer(text="Done.")])
    await conductor.turn("Go")
    assert conductor.ran == ["look"]
    assert told(conductor)[1] == "sunny in Oslo for 1"


@pytest.mark.report("U104", "U106")
@pytest.mark.parametrize(
    "answer",
    [
        ModelAnswer(text="a\x00b"),
        ModelAnswer(text="a\ud800b"),
        ModelAnswer(text=""),
        ModelAnswer(text=" \n"),
        ModelAnswer(text="", finish=Finish.LENGTH),
    ],
)
async def test_an_answer_that_cannot_be_kept_is_discarded_and_can_be_asked_for_again(
    answer: ModelAnswer,
) -> None:
    answers = [answer, ModelAnswer(text="Done.")]
    conductor = conductor_of(ScriptedModel(lambda _: answers.pop(0)))
    turn = new_turn("Go")
    with pytest.raises(ModelAnswerDiscarded) as raised:
        await conductor.step(turn)
    assert raised.value.retryable
    assert conductor.entries == [] and turn.host.receipts == {}
    assert turn.host.attempts[0][2] is not None
    assert isinstance(await conductor.step(turn), Finished)
    assert [each[2] is None for each in turn.host.attempts] == [False, True]


@pytest.mark.capability("C4.1")
async def test_max_iters_counts_through_every_restart() -> None:
    conductor = conductor_of(
        [{"when": {}, "calls": [call(place="Oslo")]}], max_iters=3, version="2"
    )
    ended = await conductor.turn("Go")
    assert isinstance(ended.outcome, Failed)
    assert ended.outcome.code == "max_iterations"
    assert conductor.ran == ["look"] * 3
    assert ended.iterations == 3
    assert entries_of(conductor)[-1]["role"] == "assistant"


@pytest.mark.capability("C4.2")
async def test_a_step_that_only_applies_results_uses_no_iteration() -> None:
    conductor = conductor_of([{"calls": [call(place="Oslo")]}, "Done."], max_iters=2)
    turn = new_turn("Go", MemoryHost(boundaries=[Boundary.GO_ON] + [Boundary.STOP] * 20))
    for _ in range(21):
        await conductor.step(turn)
    assert turn.iterations == 1
    assert isinstance(await conductor.step(turn), Finished)
    assert turn.iterations == 2


@pytest.mark.capability("C4.3")
async def test_a_new_turn_has_the_whole_budget() -> None:
    script: list[Any] = [
        {"when": {"user": "for ever"}, "calls": [call(place="Oslo")]},
        {"when": {}, "text": "Done."},
    ]
    conductor = conductor_of(script, max_iters=2)
    assert isinstance((await conductor.turn("Look for ever")).outcome, Failed)
    assert (await conductor.turn("Be quick")).text == "Done."


class Weather(BaseModel):
    sky: str
    degrees: int


@pytest.mark.parametrize(
    "text", ['{"sky": "grey", "degrees": 7}', '```json\n{"sky": "grey", "degrees": 7}\n```']
)
async def test_a_structured_answer_is_a_value_of_its_model(text: str) -> None:
    ended = await conductor_of([ModelAnswer(text=text)], output=Weather).turn("Go")
    assert isinstance(ended.outcome, Finished)
    assert ended.outcome.output.parts == (
        StructuredPart(value={"sky": "grey", "degrees": 7}, name="Weather"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "It is grey.",
        '{"sky": "grey"}',
        '{"sky": "grey", "degrees": "seven"}',
        '{"sky": "a", "sky": "b", "degrees": 7}',
        '{"sky": "a\\u0000", "degrees": 7}',
    ],
)
async def test_a_structured_answer_that_does_not_fit_is_repaired(text: str) -> None:
    answers = [ModelAnswer(text=text), ModelAnswer(text='{"sky": "grey", "degrees": 7}')]
    conductor = conductor_of(ScriptedModel(lambda _: answers.pop(0)), output=Weather)
    ended = await conductor.turn("Go")
    assert ended.text == '{"degrees":7,"sky":"grey"}'
    assert ended.iterations == 2
    assert [message.role for message in ended.messages] == ["assistant"]
    assert "is not a Weather" in entries_of(conductor)[2]["text"]


async def test_an_answer_that_the_provider_filters_fails_the_turn() -> None:
    ended = await conductor_of([{"text": "I may not.", "finish": "content_filter"}]).turn("Go")
    assert isinstance(ended.outcome, Failed)
    assert (ended.outcome.code, ended.outcome.reason) == ("model_refused", "I may not.")


class Listening:
    """Keeps what it was asked, and previews its answer in single characters."""

    name = "listening"

    def __init__(self, answers: Sequence[ModelAnswer]) -> None:
        self.requests: list[ModelRequest] = []
        self._answers = list(answers)

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        self.requests.append(request)
        answer = self._answers.pop(0)
        for character in answer.text:
            on_delta(Delta(kind=DeltaKind.TEXT, text=character))
        for index, each in enumerate(answer.calls):
            for character in str(each.arguments):
                on_delta(
                    Delta(kind=DeltaKind.ARGUMENTS, text=character, index=index, tool=each.tool)
                )
        return answer


@pytest.mark.report("U89")
@pytest.mark.capability("F6.1")
async def test_previews_name_the_message_and_say_where_they_begin_anew() -> None:
    first = ModelAnswer(
        text="I look.", calls=[ModelCall(tool="look", arguments='{"place":"Oslo"}')]
    )
    model = Listening([first, ModelAnswer(text="Done.")])
    ended = await conductor_of(model).turn("Go")
    texts = [body for kind, body in ended.host.previews if kind == "message.delta"]
    for number, message in enumerate(ended.messages, 1):
        mine = [body for body in texts if body["message_id"] == f"{ended.turn}.m{number}"]
        assert [body["offset"] for body in mine] == list(range(len(message.text)))
        assert "".join(cast("str", body["text"]) for body in mine) == message.text
    arguments = [body for kind, body in ended.host.previews if kind == "tool.arguments.delta"]
    assert {str(body["call_id"]) for body in arguments} == {ended.calls[0].call_id}
    assert "".join(cast("str", body["text"]) for body in arguments) == '{"place":"Oslo"}'


@pytest.mark.report("U106")
async def test_a_hostile_preview_does_not_stop_the_answer() -> None:
    def answer(request: ModelRequest) -> ModelAnswer:
        return ModelAnswer(text="Done.")

    class Hostile(ScriptedModel):
        async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
            on_delta(Delta(kind=DeltaKind.TEXT, text="\ud83d\x00"))
            return await super().complete(request, on_delta)

    assert (await conductor_of(Hostile(answer)).turn("Go")).text == "Done."


@pytest.mark.capability("A7.4")
@pytest.mark.law(8)
async def test_reasoning_stays_in_the_journal() -> None:
    answer = ModelAnswer(text="Done.", reasoning="a secret \x00thought")
    conductor = conductor_of([answer])
    ended = await conductor.turn("Go")
    assert "secret" not in f"{ended.messages} {ended.host.previews}"
    assert entries_of(conductor)[1]["reasoning"] == "a secret \ufffdthought"


async def test_a_receipt_says_model_and_usage() -> None:
    answer = ModelAnswer(text="Done.", usage=Usage(input_tokens=3, output_tokens=4))
    agent = ReactAgent("a", model=ScriptedModel([answer]))
    turn = new_turn("Go")
    frame = Frame(definition=agent.definition, position=0, entries=[], state=None)
    outcome = await agent.advance(frame, turn.facts(), turn.host)
    assert isinstance(outcome, Finished)
    assert [(each.key, each.usage) for each in outcome.receipts] == [("model:1", answer.usage)]
    assert cast("Entry", outcome.receipts[0].value)["model"] == "scripted"


async def test_the_model_sees_instructions_history_and_tools() -> None:
    model = Listening([ModelAnswer(text="One."), ModelAnswer(text="Two.")])
    conductor = conductor_of(model, instructions="Be brief.")
    await conductor.turn("First")
    image = ImagePart(media_type="image/png", url="https://example.org/a.png")
    await conductor.turn([image])
    request = model.requests[1]
    assert request.instructions == "Be brief."
    assert [tool.name for tool in request.tools] == ["look"]
    texts = [cast("Entry", entry).get("text") for entry in request.messages]
    assert texts == ["First", "One.", None]
    assert cast("Entry", request.messages[-1])["parts"] == [image.to_json()]
    assert [cast("Entry", entry)["role"] for entry in reversed(request.messages)] == [
        "user",
        "assistant",
        "user",
    ]


@pytest.mark.report("U53", "U55")
async def test_what_a_step_reads_and_returns_does_not_grow_with_the_history() -> None:
    class Guarded(list[Any]):
        """A history that may be read from its end only."""

        read = 0

        def __getitem__(self, index: Any) -> Any:
            self.read += 1
            return super().__getitem__(index)

        def __iter__(self) -> Any:
            raise AssertionError("the whole history is walked")

        def __reversed__(self) -> Any:
            for place in range(len(self) - 1, -1, -1):
                yield self[place]

    agent = ReactAgent(
        "a", model=ScriptedModel([{"calls": [call(place="Oslo")]}, "Done."]), tools=tools()
    )
    old: list[Any] = [
        {"role": "user", "text": "x", "turn": "t0"},
        {"role": "assistant", "text": "y"},
    ]
    entries = Guarded(old * 5000)
    frame = Frame(definition=agent.definition, position=1, entries=entries, state={})
    turn = new_turn("Go")
    outcome = await agent.advance(frame, turn.facts(), turn.host)
    assert isinstance(outcome, Parked)
    assert len(outcome.checkpoint.entries) == 2
    assert entries.read < 10


def test_one_name_in_both_catalogs_is_refused() -> None:
    with pytest.raises(BadInput, match="stands in tools and in local_tools"):
        ReactAgent("a", model=ScriptedModel(["x"]), tools=tools(), local_tools=tools())


def test_a_name_that_is_none_and_a_limit_below_one_are_refused() -> None:
    with pytest.raises(InvalidName):
        ReactAgent("no good", model=ScriptedModel(["x"]))
    with pytest.raises(BadInput, match="max_iters"):
        ReactAgent("a", model=ScriptedModel(["x"]), max_iters=0)


async def test_a_result_that_nobody_asked_for_is_damage() -> None:
    conductor = conductor_of([{"calls": [call(place="Oslo")]}, "Done."])
    turn = new_turn("Go")
    await conductor.step(turn)
    turn.results.append(replace(turn.results[0], call_id="other"))
    with pytest.raises(Damaged, match="other"):
        await conductor.step(turn)
