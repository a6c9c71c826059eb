"""`ScriptedModel`: a model that answers from a script, a list or a function, without a network."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import currentframe, isawaitable
from pathlib import Path
from types import FrameType
from typing import Any, Self, cast

from nerve.brain.agents.models import (
    Delta,
    DeltaKind,
    Finish,
    ModelAnswer,
    ModelAnswerDiscarded,
    ModelCall,
    ModelRefused,
    ModelRequest,
    ModelUnavailable,
    OnDelta,
    status_error,
)
from nerve.brain.agents.requestlog import append_line
from nerve.brain.agents.script import (
    Chat,
    Fault,
    Reply,
    Script,
    ScriptedCall,
    ScriptError,
    situation_of,
    text_of,
)
from nerve.brain.harness import Usage
from nerve.protocol.errors import BadInput

Answering = Callable[[ModelRequest], "Said | Awaitable[Said]"]
Said = ModelAnswer | str | Mapping[str, Any]


class ScriptedModel:
    """Answers by the conversation alone, so that every host gives the same answer.

    `script` is a list of answers (texts, rules as in a script file, or ModelAnswers) or a function
    from the request to one. With `log`, each request is one line of that file before it is answered.
    """

    def __init__(
        self,
        script: Script | Sequence[Said] | Answering,
        *,
        name: str = "scripted",
        log: str | Path | None = None,
    ) -> None:
        self.name = name
        self._log = None if log is None else Path(log)
        self._function = script if callable(script) else None
        self._answers: list[ModelAnswer] | None = None
        self._script: Script | None = None
        if isinstance(script, Script):
            self._script = script
        elif not callable(script):
            self._take(script)

    @classmethod
    def from_file(cls, path: str | Path, *, log: str | Path | None = None) -> Self:
        """A script in YAML or JSON; `nerve.brain.agents.script` describes it.

        A relative path is looked up in the working directory, and then beside the calling file.
        """
        file = Path(path)
        if not file.is_absolute() and not file.exists():
            file = _beside(currentframe(), file)
        try:
            return cls(Script.from_file(file), log=log)
        except ScriptError as error:
            raise _unusable(error) from None

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        if self._log is not None:
            self._record(self._log, request)
        if self._script is not None:
            return await _speak(self._reply(self._script, request), on_delta)
        answer = await self._next(request)
        _preview(answer, on_delta)
        return answer

    def _take(self, items: Sequence[Said]) -> None:
        if all(isinstance(item, ModelAnswer) for item in items):
            self._answers = list(cast("Sequence[ModelAnswer]", items))
            return
        try:
            self._script = Script.from_value([_as_rule(item) for item in items], "the script")
        except ScriptError as error:
            raise _unusable(error) from None

    async def _next(self, request: ModelRequest) -> ModelAnswer:
        if self._function is not None:
            said = self._function(request)
            return as_answer(await said if isawaitable(said) else said)
        answers = cast("list[ModelAnswer]", self._answers)
        number = situation_of(cast("Sequence[Chat]", request.messages)).round
        if number <= len(answers):
            return answers[number - 1]
        raise ModelRefused(
            f"the script has {len(answers)} answers and is asked for number {number}",
            where=self.name,
            next_step="Add an answer",
        )

    def _reply(self, script: Script, request: ModelRequest) -> Reply:
        try:
            return script.reply(cast("Sequence[Chat]", request.messages))
        except ScriptError as error:
            raise ModelRefused(str(error), where=self.name) from None

    def _record(self, log: Path, request: ModelRequest) -> None:
        last = text_of(cast("Chat", request.messages[-1])) if request.messages else ""
        append_line(log, {"key": request.key, "last": last[:200], "model": self.name})


def as_answer(said: Said) -> ModelAnswer:
    """A ModelAnswer from itself, from a text, or from a rule as in a script file."""
    if isinstance(said, ModelAnswer):
        return said
    rule = Script.from_value([said]).rules[0]
    return answer_of(Reply(number=1, rule=rule, text=rule.text, calls=rule.calls, fault=None))


def answer_of(reply: Reply) -> ModelAnswer:
    rule = reply.rule
    usage = None if rule.usage is None else Usage(**rule.usage)
    finish = Finish.TOOL_CALLS if reply.calls else Finish.STOP
    return ModelAnswer(
        text=reply.text,
        calls=tuple(_model_call(call) for call in reply.calls),
        usage=usage,
        reasoning=rule.reasoning,
        finish=finish if rule.finish is None else Finish(rule.finish),
    )


async def _speak(reply: Reply, on_delta: OnDelta) -> ModelAnswer:
    if reply.rule.delay_seconds:
        await asyncio.sleep(reply.rule.delay_seconds)
    answer = answer_of(reply)
    if reply.fault is not None:
        raise _failure(reply.fault, answer, on_delta)
    _preview(answer, on_delta)
    return answer


def _failure(fault: Fault, answer: ModelAnswer, on_delta: OnDelta) -> Exception:
    if fault.status is not None:
        after = fault.retry_after
        return status_error(
            fault.status, "as the script says", where="script", retry_after_seconds=after
        )
    if fault.cut == "connection":
        return ModelUnavailable("the connection was cut, as the script says", where="script")
    if fault.cut == "text" and answer.text:
        half = answer.text[: len(answer.text) // 2]
        on_delta(Delta(kind=DeltaKind.TEXT, text=half))
    return ModelAnswerDiscarded(f"the answer was cut inside its {fault.cut}", where="script")


def _preview(answer: ModelAnswer, on_delta: OnDelta) -> None:
    if answer.text:
        on_delta(Delta(kind=DeltaKind.TEXT, text=answer.text))


def _model_call(call: ScriptedCall) -> ModelCall:
    raw = call.raw_arguments
    return ModelCall(tool=call.tool, arguments=call.arguments if raw is None else raw)


def _as_rule(item: Said) -> object:
    if not isinstance(item, ModelAnswer):
        return item
    raise ScriptError("ModelAnswers and other answers do not mix in one list")


def _beside(frame: FrameType | None, file: Path) -> Path:
    """The file in the folder of the code that called `frame`."""
    caller = None if frame is None or frame.f_back is None else frame.f_back
    place = None if caller is None else caller.f_globals.get("__file__")
    return file if place is None else Path(place).parent / file


def _unusable(error: ScriptError) -> BadInput:
    return BadInput(str(error), where="script", next_step="See nerve.brain.agents.script")
