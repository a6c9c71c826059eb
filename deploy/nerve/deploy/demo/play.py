"""One run of `nerve demo`, from a folder to an exit code, with no process left behind."""

import asyncio
import json
import os
import shlex
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from nerve.brain.state.turn import TurnPhase
from nerve.common.clock import Clock, SystemClock
from nerve.common.settings import Settings
from nerve.deploy.client import client
from nerve.deploy.demo import places
from nerve.deploy.demo.processes import DemoFailed, Processes
from nerve.deploy.demo.proof import Claim, proof
from nerve.deploy.demo.scenario import Scenario, scenario
from nerve.deploy.demo.story import Outcome, Story
from nerve.deploy.demo.timeline import picture, runs_and_steps
from nerve.deploy.demo.voice import Tone, Voice

DONE = 0
FAILED = 1
SIGNALLED = 128
SKIPPED_MAX = 4


def run(
    *,
    logs: Path | None = None,
    keep: bool = False,
    json_lines: bool = False,
    directory: Path | None = None,
) -> int:
    """Play the demo; 0 where every claim of its proof holds, else 1 with the folder kept.

    Args:
        logs: the folder of log files to investigate; those that are shipped.
        keep: leave the folder of the demo, as also a named `directory` is left.

    Raises:
        NotFound, BadInput: `logs` or `directory` cannot be used; nothing was started.
    """
    folder = places.SHIPPED if logs is None else logs
    play = scenario(folder)
    root = places.prepare(directory)
    voice = Voice(SystemClock(), json_lines=json_lines)
    try:
        _open(root, folder, play, voice)
        outcome = asyncio.run(_interruptible(root, play, voice, SystemClock()))
    except Exception as error:
        if not isinstance(error, BrokenPipeError):
            return _failed(error, root, voice)
        _left(root, directory)
        raise
    except BaseException:
        # Interrupted, or whoever read along has seen enough, which rich tells by SystemExit.
        _left(root, directory)
        raise
    if isinstance(outcome, Outcome) and (keep or directory is not None):
        _kept(root, outcome.result.turn, voice)
    else:
        _left(root, directory)
    return DONE if isinstance(outcome, Outcome) else outcome


def _left(root: Path, directory: Path | None) -> None:
    """Take the folder away, unless somebody named it."""
    if directory is None:
        places.remove(root)


def _open(root: Path, folder: Path, play: Scenario, voice: Voice) -> None:
    places.settle(root, folder)
    (root / places.SCRIPT).write_text(json.dumps(list(play.rules)), encoding="utf-8")
    names = ", ".join(each.name for each in play.logs.files)
    voice.say("demo", f"in {root}: no server, no key, settings as shipped", root=root)
    voice.say("demo", f"{len(play.logs.files)} logs to investigate: {names}")
    for name, problem in play.logs.skipped[:SKIPPED_MAX]:
        voice.say("demo", f"left out: {name} {problem}", Tone.DIM)
    more = len(play.logs.skipped) - SKIPPED_MAX
    if more > 0:
        voice.say("demo", f"left out: {more} more", Tone.DIM)


async def _interruptible(root: Path, play: Scenario, voice: Voice, clock: Clock) -> Outcome | int:
    """Play; on a signal end every process at once, say so, and return an exit code."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    heard: list[int] = []

    def stop(number: int) -> None:
        heard.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)
    try:
        return await _played(root, play, voice, clock)
    except asyncio.CancelledError:
        if not heard:
            raise
        voice.say("demo", "stopped; every process has ended", event="stopped")
        return SIGNALLED + heard[0]


async def _played(root: Path, play: Scenario, voice: Voice, clock: Clock) -> Outcome:
    with Processes(root, clock) as processes:
        story = Story(root, processes, voice, clock)
        brain, hands = await story.begin()
        async with client(root / places.STATE, Settings()) as at:
            outcome = await story.play(at, brain, hands)
        end = clock.now_ms()
        await processes.stop()
        _answered(outcome, processes, voice, end)
    claims = proof(root, first_hands=outcome.first_hands, at_once=play.calls)
    _proven(claims, outcome, root, voice)
    _check(claims, outcome)
    return outcome


def _answered(outcome: Outcome, processes: Processes, voice: Voice, end: int) -> None:
    voice.block([""])
    voice.paragraph(outcome.result.text, Tone.GOOD)
    voice.act(7, "What happened when")
    drawn = picture(processes.all, outcome.runs, outcome.doubts, begin=voice.began, end=end)
    voice.block([*drawn, ""])
    voice.block(runs_and_steps(outcome.runs, outcome.steps, outcome.tools, begin=voice.began))


def _proven(claims: Sequence[Claim], outcome: Outcome, root: Path, voice: Voice) -> None:
    voice.act(8, "The proof: what the tools and the model's server wrote; no ledger is read")
    for claim in claims:
        word, tone = ("yes", Tone.GOOD) if claim.holds else ("NO", Tone.BAD)
        voice.say(word, f"{claim.text} ({claim.counted})", tone, event="proof", holds=claim.holds)
    voice.answer(
        {
            "event": "done",
            "holds": all(claim.holds for claim in claims),
            "proof": claims,
            "turn": outcome.result.turn,
            "phase": outcome.result.phase,
            "text": outcome.result.text,
            "runs": outcome.runs,
            "steps": outcome.steps,
            "tools": outcome.tools,
            "directory": root,
        }
    )


def _check(claims: Sequence[Claim], outcome: Outcome) -> None:
    if outcome.result.phase is not TurnPhase.COMPLETED:
        raise DemoFailed(f"the Turn ended as {outcome.result.phase}")
    for claim in claims:
        if not claim.holds:
            raise DemoFailed(f"it does not hold that {claim.text}: {claim.counted}")


def _failed(error: Exception, root: Path, voice: Voice) -> int:
    if os.environ.get("NERVE_DEBUG"):
        traceback.print_exception(error)
    known = isinstance(error, DemoFailed)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    voice.say(
        "FAILED",
        f"{text.rstrip('.')}. Everything is kept in {root}, also the logs of the processes",
        Tone.BAD,
        event="failed",
        directory=root,
    )
    return FAILED


def _kept(root: Path, turn: str, voice: Voice) -> None:
    place = f"--dir {shlex.quote(str(root / places.STATE))}"
    commands = [f"nerve ls {place}"]
    commands += [f"nerve {name} {turn} {place}" for name in ("show", "why", "tail")]
    voice.say("demo", f"kept in {root}; try:", event="kept", directory=root)
    voice.block([f"  {command}" for command in commands])
