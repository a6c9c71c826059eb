"""A small picture of what happened: processes and Runs over time, and the Runs with their Steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from nerve.brain.views import RunView, StepView, ToolView
from nerve.deploy.demo.processes import Child, Role

COLUMNS = 66


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Part of a lane. `mark` fills it; `end` stands in its last place."""

    begin: int
    end: int
    mark: str
    last: str = ""


@final
class Picture:
    """Lanes over one stretch of time, in milliseconds since the epoch."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin = begin
        self._length = max(1, end - begin)

    def scale(self) -> str:
        """Whole seconds, as many as there is room for."""
        seconds = self._length / 1000
        every = next(each for each in (1, 2, 5, 10, 20, 60, 3600) if seconds / each <= 12)
        line = [" "] * COLUMNS
        for second in range(0, int(seconds) + 1, every):
            text = f"{second}s"
            place = self._place(self._begin + second * 1000)
            if place + len(text) <= COLUMNS:
                line[place : place + len(text)] = text
        return _lane("", line)

    def lane(self, name: str, spans: Sequence[Span]) -> str:
        line = [" "] * COLUMNS
        for span in spans:
            begin, end = self._place(span.begin), self._place(span.end)
            line[begin : end + 1] = span.mark * (end + 1 - begin)
            if span.last:
                line[end] = span.last
        return _lane(name, line)

    def _place(self, at: int) -> int:
        share = (at - self._begin) / self._length
        return max(0, min(COLUMNS - 1, int(share * COLUMNS)))


def _lane(name: str, line: Sequence[str]) -> str:
    return f"  {name:<7} {''.join(line)}".rstrip()


def picture(
    children: Sequence[Child],
    runs: Sequence[RunView],
    unknown: Sequence[tuple[int, int]],
    *,
    begin: int,
    end: int,
) -> list[str]:
    """Processes with their kills (X), the Turn with its Runs (numbers), `?` while UNKNOWN."""
    drawn = Picture(begin, end)
    waits = [Span(begin=runs[0].started_at, end=runs[-1].ended_at, mark=".")] if runs else []
    doubts = [Span(begin=since, end=until, mark="?") for since, until in unknown]
    numbers = [
        Span(begin=run.started_at, end=run.ended_at, mark=str(run.number % 10)) for run in runs
    ]
    lanes = [drawn.scale()]
    lanes += [drawn.lane(role.value, _lives(children, role, end)) for role in Role]
    lanes.append(drawn.lane("turn", [*waits, *doubts, *numbers]))
    lanes.append("  X killed   . the Turn waits   ? an outcome is UNKNOWN   1 2 3 its Runs")
    return lanes


def _lives(children: Sequence[Child], role: Role, end: int) -> list[Span]:
    return [
        Span(
            begin=child.born,
            end=end if child.died is None else child.died,
            mark="=",
            last="X" if child.killed else "",
        )
        for child in children
        if child.role is role
    ]


def runs_and_steps(
    runs: Sequence[RunView], steps: Sequence[StepView], tools: Sequence[ToolView], *, begin: int
) -> list[str]:
    """One line per Run and Step, and under each Step the calls that it committed."""
    lines: list[str] = []
    for run in runs:
        reason = f": {run.reason}" if run.reason else ""
        lines.append(f"  Run {run.number}  {_at(run.started_at, begin)}  {run.state}{reason}")
        for step in (each for each in steps if each.run == run.run):
            lines.append(_step(step))
            lines += [_tool(tool) for tool in tools if tool.origin_step == step.step]
    return lines


def _step(step: StepView) -> str:
    resumed = step.resumed_from_step_id
    after = f", goes on from step {_short(resumed)}" if resumed else ""
    return f"    step {_short(step.step)}  {step.phase} {step.state}{after}"


def _tool(tool: ToolView) -> str:
    attempts = f", attempt {tool.attempt}" if tool.attempt > 1 else ""
    number = tool.execution.rpartition(".")[2]
    return f"      {number:<4} {tool.tool:<14} {tool.outcome}, effect {tool.effect}{attempts}"


def _short(step: str) -> str:
    return step.partition(".")[2]


def _at(at: int, begin: int) -> str:
    return f"{(at - begin) / 1000:5.2f}s"
