"""Scripts: which rule answers, what is filled in, and what a wrong script is told."""

from pathlib import Path
from typing import Any

import pytest

from nerve.brain.agents.models import (
    DeltaKind,
    Finish,
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelCall,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
)
from nerve.brain.agents.script import Script, ScriptError
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.harness import Usage
from nerve.protocol.errors import BadInput

USER = {"role": "user", "text": "Will it rain in Oslo?", "turn": "t1"}
ASKED: dict[str, Any] = {
    "role": "assistant",
    "text": "",
    "calls": [{"id": "c", "tool": "look", "arguments": {}}],
}
RESULT = {"role": "tool", "call": "c", "tool": "look", "text": "rain"}


def request_of(*messages: Any) -> ModelRequest:
    return ModelRequest(key="t1/model:1", messages=list(messages))


async def answer(script: Any, *messages: Any) -> ModelAnswer:
    model = ScriptedModel(script)
    return await model.complete(request_of(*(messages or (USER,))), lambda _: None)


async def test_rules_without_a_condition_answer_in_their_turn() -> None:
    script = ["one", {"when": {"tool": "never"}, "text": "never"}, "two"]
    assert (await answer(script)).text == "one"
    assert (await answer(script, USER, ASKED, RESULT)).text == "two"
    assert (await answer(script, USER, ASKED, RESULT, USER)).text == "one"


async def test_the_first_rule_that_fits_answers_with_its_names_filled_in() -> None:
    script: list[Any] = [
        {"when": {"user": r"\bin (?P<city>\w+)", "round": 1}, "calls": [look_in("$city")]},
        {"when": {"tool": "look", "last": "RAIN"}, "text": "Yes: $last ($results) $unknown $$5"},
        {"when": {}, "text": "otherwise"},
    ]
    assert (await answer(script)).calls == (
        ModelCall(tool="look", arguments={"place": ["Oslo", {"deep": "Oslo"}]}),
    )
    assert (await answer(script, USER, ASKED, RESULT)).text == "Yes: rain (rain) $unknown $5"
    assert (await answer(script, {"role": "user", "text": "Hello"})).text == "otherwise"


def look_in(place: str) -> dict[str, Any]:
    return {"tool": "look", "arguments": {"place": [place, {"deep": place}]}}


async def test_a_text_as_condition_looks_at_the_last_message() -> None:
    script: list[Any] = [{"when": "rain in", "text": "yes"}, {"when": {}, "text": "no"}]
    assert (await answer(script)).text == "yes"
    assert (
        await answer(script, {"role": "user", "parts": [{"type": "text", "text": "x"}]})
    ).text == "no"


async def test_a_rule_says_everything_that_a_model_can() -> None:
    rule = {
        "text": "x",
        "reasoning": "thought",
        "usage": {"input_tokens": 1, "output_tokens": 2},
        "call": {"tool": "look", "raw_arguments": '{"a'},
        "finish": "length",
    }
    assert await answer([rule]) == ModelAnswer(
        text="x",
        calls=(ModelCall(tool="look", arguments='{"a'),),
        usage=Usage(input_tokens=1, output_tokens=2),
        reasoning="thought",
        finish=Finish.LENGTH,
    )


async def test_a_fault_is_shown_as_often_as_it_says() -> None:
    model = ScriptedModel(
        [
            {"when": {"round": 1}, "text": "well", "fault": {"status": 503, "times": 2}},
            {"when": {"round": 2}, "text": "well", "fault": {"cut": "text"}},
            {"when": {"round": 3}, "text": "well", "fault": {"cut": "connection"}},
        ]
    )
    for _ in range(2):
        with pytest.raises(ModelUnavailable):
            await model.complete(request_of(USER), lambda _: None)
    assert (await model.complete(request_of(USER), lambda _: None)).text == "well"
    pieces: list[Any] = []
    with pytest.raises(ModelAnswerDiscarded):
        await model.complete(request_of(USER, ASKED, RESULT), pieces.append)
    assert [(each.kind, each.text) for each in pieces] == [(DeltaKind.TEXT, "we")]
    with pytest.raises(ModelUnavailable):
        await model.complete(request_of(USER, ASKED, RESULT, ASKED, RESULT), lambda _: None)


def at_once(request: ModelRequest) -> str:
    return "now"


async def test_functions_and_answers_are_scripts_too() -> None:
    async def later(request: ModelRequest) -> dict[str, Any]:
        return {"text": f"later {request.key}"}

    assert (await answer(later)).text == "later t1/model:1"
    assert (await answer(at_once)).text == "now"
    assert (await answer([ModelAnswer(text="ready")])).text == "ready"


async def test_a_script_that_ran_out_refuses_and_says_what_it_lacks() -> None:
    for script in (["one"], [ModelAnswer(text="one")]):
        with pytest.raises(ModelRefused, match="Add an answer|add a rule"):
            await answer(script, USER, ASKED, RESULT)


async def test_each_request_is_a_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "requests.log"
    for _ in range(2):
        await ScriptedModel(["a\ud800"], log=log).complete(request_of(USER), lambda _: None)
    line = '{"key": "t1/model:1", "last": "Will it rain in Oslo?", "model": "scripted"}\n'
    assert log.read_text("utf-8") == line * 2


def test_files_are_yaml_or_json_and_found_beside_the_caller(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rules:\n- hello\n- {when: {}, text: x}\n", "utf-8")
    (tmp_path / "a.json").write_text('["hello"]', "utf-8")
    assert len(Script.from_file(tmp_path / "a.yaml").rules) == 2
    assert Script.from_file(tmp_path / "a.json").rules[0].text == "hello"
    here = Path(__file__).with_name("test_script.py")
    with pytest.raises(BadInput, match="is not YAML|is a list of rules|cannot be read") as raised:
        ScriptedModel.from_file(here.name)
    assert str(here) in str(raised.value)


WRONG: list[tuple[Any, str]] = [
    (7, "a script is a list of rules"),
    ({"rules": 7}, "a script is a list of rules"),
    ([7], "rule 1: expected a mapping"),
    (["a", {"txt": "b"}], "rule 2: unknown txt"),
    ([{"when": {"usr": "x"}}], "rule 1: when: unknown usr"),
    ([{"when": {"user": "("}}], "`user` is not a pattern"),
    ([{"calls": {"tool": "x"}}], "`calls` is a list"),
    ([{"call": {"arguments": {}}}], "name a `tool`"),
    ([{"call": {"tool": "x", "arguments": []}}], "`arguments` is a mapping"),
    ([{"text": 7}], "text: expected text"),
    ([{"finish": "bored"}], "`finish` is one of"),
    ([{"fault": {}}], "give `status` or `cut`"),
    ([{"fault": {"cut": "hair"}}], "`cut` is one of"),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_a_wrong_script_is_told_the_place(value: Any, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        Script.from_value(value)


def test_a_wrong_list_is_bad_input() -> None:
    with pytest.raises(BadInput, match="unknown txt"):
        ScriptedModel([{"txt": "x"}])
    with pytest.raises(BadInput, match="do not mix"):
        ScriptedModel([ModelAnswer(text="a"), "b"])
