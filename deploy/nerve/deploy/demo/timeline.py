"""A small picture of what happened: processes and Runs over time, and the Runs with their Steps."""

from collections.abc import Sequence
from typing import final

from nerve.brain.views import RunView, StepView, ToolView
from nerve.deploy.demo.processes import Child, Role

COLUMNS = 66


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

    def processes(self, role: Role, children: Sequence[Child]) -> str:
        """Lives of one role: starting, running, and where each was killed."""
        line = [" "] * COLUMNS
        last = COLUMNS - 1
        for child in children:
            end = last if child.died is None else self._place(child.died)
            up = end if child.up is None else self._place(child.up)
            self._fill(line, self._place(child.born), up, "-")
            self._fill(line, up, end, "=")
        for child in children:
            if child.killed and child.died is not None:
                line[self._place(child.died)] = "X"
        return _lane(role.value, line)

    def turn(self, runs: Sequence[RunView], doubts: Sequence[tuple[int, int]]) -> str:
        """The Runs of a Turn by their numbers, each at least once, and what it waits for."""
        line = [" "] * COLUMNS
        if runs:
            self._fill(line, self._place(runs[0].started_at), self._place(runs[-1].ended_at), ".")
        for begin, end in doubts:
            self._fill(line, self._place(begin), self._place(end), "?")
        free = 0
        for run in runs:
            begin = max(free, self._place(run.started_at))
            end = max(begin, self._place(run.ended_at))
            self._fill(line, begin, end, str(run.number % 10))
            free = end + 1
        return _lane("turn", line)

    def _fill(self, line: list[str], begin: int, end: int, mark: str) -> None:
        line[begin : end + 1] = mark * (min(end, COLUMNS - 1) + 1 - begin)

    def _place(self, at: int) -> int:
        share = (at - self._begin) / self._length
        return max(0, min(COLUMNS - 1, int(share * COLUMNS)))


def _lane(name: str, line: Sequence[str]) -> str:
    return f"  {name:<7} {''.join(line)}".rstrip()


def picture(
    children: Sequence[Child],
    runs: Sequence[RunView],
    doubts: Sequence[tuple[int, int]],
    *,
    begin: int,
    end: int,
) -> list[str]:
    """Processes with their kills, and the Turn that goes on through them."""
    drawn = Picture(begin, end)
    lives = [
        drawn.processes(role, [child for child in children if child.role is role]) for role in Role
    ]
    return [
        drawn.scale(),
        *lives,
        drawn.turn(runs, doubts),
        "",
        "  - starting  = running  X SIGKILL",
        "  1 2 3 Runs of the one Turn  . it waits  ? nobody knows an outcome",
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
