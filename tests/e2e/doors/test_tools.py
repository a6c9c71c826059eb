"""Tools that do everything a tool should not, in a Hands process of its own: recorded by name, and the rest goes on."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from nerve.brain.handles import Turn
from nerve.brain.state.turn import TurnPhase
from nerve.brain.views import ToolView
from nerve.common.settings import Settings
from nerve.protocol.execution import RESULT_BYTES_MAX
from nerve.protocol.output import PageKind
from support import hostile
from support.apart import Apart, Client, apart, client
from support.waiting import until

APP = Path(__file__).parent / "app.py"
MIB = 1024 * 1024

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@asynccontextmanager
async def world(place: Path) -> AsyncGenerator[tuple[Apart, Client]]:
    async with apart(place, APP) as at:
        await asyncio.gather(at.brain(), at.hands())
        async with client(at) as here:
            yield at, here


async def call(here: Client, name: str, tool: str, **arguments: object) -> ToolView:
    """The one call of a Turn that has COMPLETED, and whose answer repeats what the model was told."""
    turn = await here.submit(name, "hostile", f"{tool} {orjson.dumps(arguments).decode()}")
    return await told(turn)


async def told(turn: Turn) -> ToolView:
    result = await turn.result(40)
    assert result.phase is TurnPhase.COMPLETED, result
    (view,) = await turn.tools()
    assert result.text == view.text
    return view


def outcome(view: ToolView) -> tuple[str, str]:
    return view.outcome, view.effect.value


@pytest.mark.capability("D16.2", "D16.3")
@pytest.mark.report("U104", "U105", "U106", "U107")
@pytest.mark.rule(20)
async def test_a_result_that_is_no_json_is_a_success_and_an_exception_is_unconfirmed(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (at, here):
        wanted = hostile.values()
        given = await asyncio.gather(
            *(call(here, f"give-{n}", "give", what=name) for n, name in enumerate(wanted))
        )
        for name, view in zip(wanted, given, strict=True):
            assert outcome(view) == ("SUCCEEDED", "completed"), name
            assert "The tool ran and its result could not be stored" in str(view.text), name
        codes = at.rows("hands-hands", "select id, code from execution where tool = 'give'")
        found = {row["id"]: row["code"] for row in codes}
        assert [found[view.execution] for view in given] == [
            f"result_{fault}" for _, fault in wanted.values()
        ]

        thrown = await asyncio.gather(
            *(
                call(here, f"throw-{number}", "throw", text=text)
                for number, text in enumerate(["NUL", "lone surrogate", "x" * 100_000])
            )
        )
        for view in thrown:
            assert outcome(view) == ("FAILED", "unconfirmed")
            assert "its effect is unconfirmed; it may have happened" in str(view.text)
        left = await call(here, "leave", "leave")
        assert outcome(left) == ("FAILED", "unconfirmed")
        proven = await call(here, "prove", "prove")
        assert outcome(proven) == ("FAILED", "none")
        assert "there is no such file" in str(proven.text)
        assert len(at.effects) == len(given) + len(thrown) + 1


@pytest.mark.report("U51", "U52")
async def test_a_result_over_the_limit_fails_once_with_size_and_limit(tmp_path: Path) -> None:
    limit = Settings().result_bytes_max
    fit = [RESULT_BYTES_MAX, 1 * MIB, 3 * MIB]
    sizes = [*fit, limit - 1, 5 * MIB, 50 * MIB]
    async with world(tmp_path) as (at, here):
        views = [await call(here, f"s-{size}", "large", size=size) for size in sizes]
        assert [outcome(view) for view in views] == [("SUCCEEDED", "completed")] * len(sizes)
        assert [len(str(view.text)) for view in views[: len(fit)]] == fit
        for size, view in zip(sizes[len(fit) :], views[len(fit) :], strict=True):
            assert f"a result of {size + 2} bytes; the limit is {limit}" in str(view.text)
        assert len(at.effects) == len(sizes)


@pytest.mark.report("U60")
@pytest.mark.capability("D5.1", "D5.3")
async def test_what_a_tool_prints_is_kept_up_to_a_gap_and_binary_output_bit_by_bit(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as (at, here):
        many, odd = await asyncio.gather(
            call(here, "chatter", "chatter", mebibytes=24), call(here, "binary", "binary")
        )
        assert (outcome(many), outcome(odd)) == (("SUCCEEDED", "completed"),) * 2
        pages = "select kind, length, data from output_page where execution = '{}' order by start"
        gaps = [
            page
            for page in at.rows("hands-hands", pages.format(many.execution))
            if page["kind"] == PageKind.GAP
        ]
        assert gaps and sum(page["length"] for page in gaps) > 0
        written = at.rows("hands-hands", pages.format(odd.execution))
        data = b"".join(page["data"] for page in written)
        assert hashlib.sha256(data).digest() == hashlib.sha256(bytes(range(256)) * 300).digest()


@pytest.mark.report("U19")
@pytest.mark.capability("C1.1")
async def test_a_tool_that_blocks_its_event_loop_runs_once_and_its_host_keeps_its_lease(
    tmp_path: Path,
) -> None:
    async with apart(tmp_path, APP, NERVE_LEASE_SECONDS="1", NERVE_HEARTBEAT_SECONDS="0.2") as at:
        await at.brain()
        await at.hands()
        await at.hands()
        async with client(at) as here:
            view = await call(here, "block", "block", seconds=3.5)
            assert (outcome(view), view.text) == (("SUCCEEDED", "completed"), "unblocked")
            assert at.effects == [f"block {view.execution} 1"]
            hosts = at.rows("hands-hands", "select state from host")
            assert [each["state"] for each in hosts] == ["LIVE", "LIVE"]


@pytest.mark.report("U46")
@pytest.mark.law(4)
@pytest.mark.capability("D8.1")
async def test_a_tool_that_kills_its_process_is_unknown_and_the_others_end(tmp_path: Path) -> None:
    async with world(tmp_path) as (at, here):
        hands = at.processes[1]
        killer = await here.submit("die", "hostile", "die")
        await until(lambda: hands.process.returncode is not None, "the Hands process died")
        others = [
            await here.submit(f"o-{n}", "hostile", f'echo {{"word":"{n}"}}') for n in range(5)
        ]
        await at.hands()
        assert [await answer(turn) for turn in others] == [f"echo {n}" for n in range(5)]
        await until(
            lambda: at.rows("brain", "select 1 as x from intent where outcome = 'UNKNOWN'"),
            "the killer's outcome is UNKNOWN",
        )
        status = await killer.status()
        assert (status.phase, [each.outcome for each in status.executions]) == (
            TurnPhase.WAITING,
            ["UNKNOWN"],
        )
        assert "UNKNOWN" in status.why[0] and "nerve reconcile" in status.why[0]
        died = [line for line in at.effects if line.startswith("die")]
        assert died == [f"die {killer.id}.x1 1"]


async def answer(turn: Turn) -> str:
    return (await turn.result(40)).text


BAD_CALLS: Sequence[str] = [
    *(f"echo {text}" for name, (text, _) in hostile.TEXTS.items() if name != "too deep"),
    "echo " + "[" * 300 + "]" * 300,
    'echo {"wrod":"x"}',
    'echo {"word":1}',
    'nothing {"word":"x"}',
    'x/../y {"word":"x"}',
]


@pytest.mark.report("U107", "U108", "U110", "U104", "U106")
@pytest.mark.law(10)
async def test_a_call_that_a_model_wrote_wrong_is_told_to_it_and_never_leaves_the_brain(
    tmp_path: Path,
) -> None:
    async with apart(tmp_path, APP) as at:
        await at.brain()
        async with client(at) as here:
            turns = [
                await here.submit(f"s-{number}", "hostile", text)
                for number, text in enumerate(BAD_CALLS)
            ]
            for text, turn in zip(BAD_CALLS, turns, strict=True):
                said = await answer(turn)
                assert said.startswith("The call was not run"), (text, said)
                assert await turn.tools() == []
        assert at.rows("brain", "select count(*) as n from intent") == [{"n": 0}]
