"""`ReactAgent`: asks a model, runs the tools it asks for, and asks again until there is an answer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import BaseModel, ValidationError

from nerve.brain.agents.answer import Answer, Call, call_id, read_answer, restored
from nerve.brain.agents.chat import (
    Conversation,
    Entry,
    open_calls,
    told_entry,
    tool_entry,
    user_entry,
)
from nerve.brain.agents.local import LocalTools, storable, together
from nerve.brain.agents.models import (
    Delta,
    DeltaKind,
    Finish,
    Model,
    ModelRequest,
    OutputSchema,
    ToolSchema,
)
from nerve.brain.agents.scripted import ScriptedModel
from nerve.brain.harness import (
    Boundary,
    Checkpoint,
    Definition,
    Facts,
    Failed,
    Finished,
    Frame,
    HarnessFlags,
    HarnessHost,
    Outcome,
    Parked,
    Paused,
    Receipt,
    ToolCall,
    ToolOutcome,
)
from nerve.protocol.binding import ToolBinding
from nerve.protocol.canonical import JsonValue, canonical_bytes, check_value, read_strict
from nerve.protocol.catalog import Catalog
from nerve.protocol.content import Message, Role, StructuredPart
from nerve.protocol.errors import BadInput, Damaged, InvalidJSON, TooLarge
from nerve.protocol.identity import check_name

__all__ = ["ReactAgent", "ScriptedModel"]

STATE_VERSION: Final = "1"
_NO_RESULT = (
    "The Turn ended before this call had a result. Whether it took effect is not known;"
    " do not assume either."
)
_NO_ANSWER = "(This Turn ended without an answer.)"
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL | re.IGNORECASE)


class ReactAgent:
    """An agent with instructions, a model and tools; a Harness.

    `tools` run in Hands, `local_tools` in the Brain. `max_iters` counts the model's answers of one
    Turn, over all restarts. With `output`, the final answer is a value of that model.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "1",
        model: Model,
        tools: Catalog | None = None,
        local_tools: Catalog | None = None,
        instructions: str = "",
        max_iters: int = 10,
        output: type[BaseModel] | None = None,
    ) -> None:
        if max_iters < 1:
            raise BadInput("max_iters is at least 1", where="max_iters", next_step="Raise it")
        self.definition = Definition(
            agent=check_name(name, "agent"),
            version=check_name(version, "version"),
            harness="react",
            state_version=STATE_VERSION,
        )
        self.flags = HarnessFlags(streams=True, replays=False)
        self.model = model
        self.instructions = instructions
        self.max_iters = max_iters
        self.output = output
        self.local = LocalTools(local_tools)
        self.bindings: Mapping[str, ToolBinding] = together(tools, self.local)
        self.tool_schemas = tuple(_schema(binding) for binding in self.bindings.values())
        self.output_schema = None if output is None else _output_schema(output)
        self.nature: Mapping[str, JsonValue] = {
            "instructions": instructions,
            "max_iters": max_iters,
            "model": model.name,
            "output": None if self.output_schema is None else dict(self.output_schema.schema),
        }

    async def advance(self, frame: Frame, facts: Facts, host: HarnessHost) -> Outcome:
        return await _Advance(self, frame, facts, host).run()

    def settle(self, frame: Frame, results: Sequence[ToolOutcome]) -> Checkpoint:
        texts = {result.call_id: result.text for result in results}
        entries: list[JsonValue] = [
            tool_entry(_id(call), _tool(call), texts.get(_id(call), _NO_RESULT))
            for call in open_calls(frame.entries)
        ]
        tail = entries or frame.entries[-1:]
        if tail and cast("Entry", tail[-1])["role"] != "assistant":
            entries.append({"role": "assistant", "text": _NO_ANSWER})
        return Checkpoint(entries=entries, state={})

    def check(self, tool: str, arguments: JsonValue) -> Mapping[str, JsonValue]:
        """The arguments, or an error whose text can go back to the model."""
        binding = self.bindings.get(tool)
        if binding is not None:
            return binding.check_arguments(arguments)
        known = ", ".join(self.bindings) or "none"
        raise BadInput(
            f"there is no tool {ascii(tool)[:80]}",
            where="tool",
            next_step=f"The tools are: {known}",
        )


class _Advance:
    """One `advance`: what was said and done since the frame, until there is an outcome."""

    __slots__ = ("agent", "entries", "facts", "frame", "host", "messages", "receipts", "rounds")

    def __init__(self, agent: ReactAgent, frame: Frame, facts: Facts, host: HarnessHost) -> None:
        self.agent = agent
        self.frame = frame
        self.facts = facts
        self.host = host
        self.entries: list[JsonValue] = []
        self.receipts: list[Receipt] = []
        self.messages: list[Message] = []
        self.rounds = 0

    async def run(self) -> Outcome:
        self._take_in()
        while self.facts.iterations + self.rounds < self.agent.max_iters:
            await self._commit_receipts()
            if await self.host.boundary() is Boundary.STOP:
                return Paused()
            answer = await self._answer()
            self.rounds += 1
            outcome = await self._apply(answer)
            if outcome is not None:
                return outcome
        limit = self.agent.max_iters
        return self._failed("max_iterations", f"no answer within {limit} rounds of the model")

    def _take_in(self) -> None:
        """The input of a new Turn, or the results that a parked one waited for."""
        if self.facts.fresh:
            self.entries.append(user_entry(self.facts.input, self.facts.turn))
            return
        results = {result.call_id: result for result in self.facts.results}
        for call in open_calls(self.frame.entries):
            result = results.pop(_id(call), None)
            if result is None:
                raise _does_not_fit(f"the call {_id(call)} has no result yet")
            self.entries.append(tool_entry(result.call_id, result.tool, result.text))
        if results:
            raise _does_not_fit(f"a result came for {', '.join(results)}, which is not open")

    async def _commit_receipts(self) -> None:
        for receipt in self.receipts:
            await self.host.put_receipt(receipt)
        self.receipts.clear()

    async def _answer(self) -> Answer:
        ordinal = self.facts.iterations + self.rounds + 1
        key = f"model:{ordinal}"
        kept = await self.host.receipt(key)
        if kept is not None:
            return restored(kept)
        try:
            said = await self.agent.model.complete(self._request(key), _Preview(self, ordinal))
            answer = read_answer(said, ordinal, self.agent.check, self.agent.model.name)
        except Exception as error:
            text = storable(f"{type(error).__name__}: {error}")[:500]
            self.host.observe_attempt(key, attempt=1, error=text)
            raise
        self.host.observe_attempt(key, attempt=1, error=None)
        value = answer.receipt(self.agent.model.name)
        self.receipts.append(Receipt(key=key, value=value, usage=said.usage))
        return answer

    def _request(self, key: str) -> ModelRequest:
        agent = self.agent
        return ModelRequest(
            key=f"{self.facts.turn}/{key}",
            messages=Conversation(self.frame.entries, self.entries),
            instructions=agent.instructions,
            tools=agent.tool_schemas,
            output=agent.output_schema,
        )

    async def _apply(self, answer: Answer) -> Outcome | None:
        """The outcome, or None where the model must be asked again."""
        self.entries.append(answer.entry())
        if answer.finish is Finish.FILTERED:
            return self._failed("model_refused", answer.text or "the provider's filter stopped it")
        if not answer.calls:
            return self._finished(answer.text)
        if answer.text:
            self.messages.append(Message.assistant(answer.text))
        remote: list[ToolCall] = []
        for call in answer.calls:
            if call.problem is not None:
                self._result(call, call.problem)
            elif call.tool not in self.agent.local:
                remote.append(
                    ToolCall(call_id=call.call_id, tool=call.tool, arguments=call.arguments)
                )
            elif not await self._run_local(call):
                return Paused()
        return self._parked(remote) if remote else None

    async def _run_local(self, call: Call) -> bool:
        """False where the host wants to stop: the receipts so far make a repeat find this place."""
        await self._commit_receipts()
        if await self.host.boundary() is Boundary.STOP:
            return False
        done = await self.agent.local.run(call.call_id, call.tool, call.arguments, self.host)
        self._result(call, done.text)
        return True

    def _result(self, call: Call, text: str) -> None:
        self.entries.append(tool_entry(call.call_id, call.tool, text))

    def _finished(self, text: str) -> Outcome | None:
        if self.agent.output is None:
            return self._final(Message.assistant(text))
        try:
            value = _structured(self.agent.output, text)
        except (InvalidJSON, TooLarge, ValidationError) as error:
            self.entries.append(told_entry(_mend(self.agent.output, error)))
            return None
        part = StructuredPart(value=value, name=self.agent.output.__name__)
        return self._final(Message(role=Role.ASSISTANT, parts=(part,)))

    def _final(self, output: Message) -> Finished:
        return Finished(
            checkpoint=Checkpoint(entries=self.entries, state={}),
            output=output,
            receipts=self.receipts,
            messages=self.messages,
            iterations=self.rounds,
        )

    def _parked(self, calls: Sequence[ToolCall]) -> Parked:
        said = self.said + len(self.messages)
        return Parked(
            checkpoint=Checkpoint(entries=self.entries, state={"said": said}),
            calls=calls,
            receipts=self.receipts,
            messages=self.messages,
            iterations=self.rounds,
        )

    def _failed(self, code: str, reason: str) -> Failed:
        if not self.entries or cast("Entry", self.entries[-1])["role"] != "assistant":
            self.entries.append({"role": "assistant", "text": _NO_ANSWER})
        return Failed(
            checkpoint=Checkpoint(entries=self.entries, state={}),
            code=code,
            reason=reason,
            receipts=self.receipts,
            messages=self.messages,
            iterations=self.rounds,
        )

    @property
    def said(self) -> int:
        """How many public messages the Turn had in the frame."""
        if self.facts.fresh:
            return 0
        state = self.frame.state
        return cast("int", state.get("said", 0)) if isinstance(state, dict) else 0


class _Preview:
    """Passes the pieces of one answer on. `offset` 0 begins anew and replaces what was shown."""

    __slots__ = ("_advance", "_lengths", "_ordinal")

    def __init__(self, advance: _Advance, ordinal: int) -> None:
        self._advance = advance
        self._ordinal = ordinal
        self._lengths: dict[int, int] = {}

    def __call__(self, delta: Delta) -> None:
        is_text = delta.kind is DeltaKind.TEXT
        place = -1 if is_text else delta.index
        offset = self._lengths.get(place, 0)
        self._lengths[place] = offset + len(delta.text)
        advance = self._advance
        body: dict[str, JsonValue] = {
            "attempt": self._ordinal,
            "offset": offset,
            "text": storable(delta.text),
        }
        if is_text:
            number = advance.said + len(advance.messages) + 1
            body["message_id"] = f"{advance.facts.turn}.m{number}"
            advance.host.emit("message.delta", body)
        else:
            body["call_id"] = call_id(self._ordinal, delta.index)
            body["tool"] = storable(delta.tool)
            advance.host.emit("tool.arguments.delta", body)


def _schema(binding: ToolBinding) -> ToolSchema:
    return ToolSchema(
        name=binding.name, description=binding.description, parameters=binding.input_schema
    )


def _output_schema(output: type[BaseModel]) -> OutputSchema:
    schema = cast("dict[str, JsonValue]", output.model_json_schema(mode="validation"))
    return OutputSchema(name=output.__name__, schema=schema)


def _structured(output: type[BaseModel], text: str) -> JsonValue:
    """The final value; a model may put it between the marks of a code block."""
    fenced = _FENCED.fullmatch(text)
    value = read_strict(fenced.group(1) if fenced else text, where="answer")
    made = output.model_validate_json(canonical_bytes(value))
    return check_value(made.model_dump(mode="json"), "answer")


def _mend(output: type[BaseModel], error: InvalidJSON | TooLarge | ValidationError) -> str:
    if isinstance(error, ValidationError):
        faults: list[Any] = list(error.errors(include_url=False, include_input=False))[:8]
        lines = (f"/{'/'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        what = "; ".join(lines)
    else:
        what = str(error)
    return (
        f"Your answer is not a {output.__name__}: {storable(what)}."
        " Answer again with only the JSON value that fits the schema."
    )


def _does_not_fit(what: str) -> Damaged:
    return Damaged(
        f"the stored history does not fit: {what}",
        where="journal",
        next_step="Look at the Turn with `nerve show`, and report this",
    )


def _id(call: Entry) -> str:
    return cast("str", call["id"])


def _tool(call: Entry) -> str:
    return cast("str", call["tool"])
