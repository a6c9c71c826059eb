"""The command line as a door: a sentence, a code, an exit code, never a traceback, and nothing half-written."""

import asyncio
from pathlib import Path

import pytest

from support.apart import Apart, apart
from support.hostile import TEXTS
from support.waiting import until

APP = Path(__file__).parent / "app.py"
USAGE, NOT_FOUND = 2, 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


async def refused(at: Apart, code: int, *arguments: str, input: bytes = b"") -> str:
    """What the command says beside its exit code."""
    found, _, err = await at.run(*arguments, input=input)
    assert (found, "Traceback" in err) == (code, False), (arguments, found, err)
    assert err.strip(), arguments
    return err


@pytest.mark.report("U51", "U104", "U106", "U110")
async def test_hostile_arguments_get_a_sentence_and_change_nothing(tmp_path: Path) -> None:
    raw = tmp_path / "raw.bin"
    raw.write_bytes(bytes(range(256)))
    nul = tmp_path / "nul.txt"
    nul.write_bytes(b"a\x00b")
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * 1024 * 1024)
    async with apart(tmp_path, APP) as at:
        await at.brain()
        surrogate = "a\udcffb"  # How Python shows a byte of the command line that is not UTF-8.
        said = await asyncio.gather(
            refused(at, USAGE, "submit", "hostile", surrogate),
            refused(at, USAGE, "submit", "hostile", "x", "--request-id", "r" * 257),
            refused(at, USAGE, "submit", "hostile", "x", "--request-id", "a\nb"),
            refused(at, USAGE, "submit", "hostile", "x", "--session", "a/b/c"),
            refused(at, USAGE, "submit", "ho stile", "x"),
            refused(at, USAGE, "submit", "hostile"),
            refused(at, USAGE, "submit", "hostile", "--file", str(raw)),
            refused(at, USAGE, "submit", "hostile", "--file", str(nul)),
            refused(at, USAGE, "submit", "hostile", "--file", str(large)),
            refused(at, USAGE, "submit", "hostile", "--file", str(tmp_path / "none")),
            refused(at, NOT_FOUND, "submit", "hostil", "x"),
            refused(at, NOT_FOUND, "why", "t" + "0" * 26),
            refused(at, USAGE, "why", "t/../x"),
            refused(at, NOT_FOUND, "show", "tzzzz"),
        )
        assert "lone surrogate" in said[0]
        assert "256" in said[1]
        assert "limit is 524,288" in said[8]
        assert "Did you mean hostile?" in said[10]
        assert at.rows("brain", "select count(*) as n from turn") == [{"n": 0}]
        assert at.rows("brain", "select count(*) as n from request") == [{"n": 0}]


@pytest.mark.report("U107", "U110")
@pytest.mark.capability("D8.1")
async def test_a_verdict_that_is_no_json_is_refused_and_the_outcome_stays_unknown(
    tmp_path: Path,
) -> None:
    async with apart(tmp_path, APP) as at:
        await at.brain()
        hands = await at.hands()
        code, answer, err = await at.run("submit", "hostile", "die", "--json")
        assert code == 0, err
        execution = answer["turn"] + ".x1"
        await until(lambda: hands.process.returncode is not None, "the Hands process died")
        await at.hands()
        unknown = "select 1 as x from execution where state = 'UNKNOWN'"
        await until(lambda: at.rows("hands-hands", unknown), "the outcome is UNKNOWN")
        names = ("duplicate key", "two roots", "NaN", "NUL", "lone surrogate", "too deep")
        command = ("reconcile", execution, "--succeeded", "--evidence", "log 7")
        await asyncio.gather(
            *(refused(at, USAGE, *command, "--result", TEXTS[name][0]) for name in names)
        )
        assert at.rows("hands-hands", unknown)
        assert at.rows("hands-hands", "select * from receipt") == []
        code, _, err = await at.run(*command, "--result", '"it died after it"')
        assert code == 0, err
        assert at.rows("hands-hands", unknown) == []
