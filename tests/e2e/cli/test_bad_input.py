"""What is wrong is said in one sentence with the nearest right thing, under a documented exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.terminal import NERVE, Terminal


def one_sentence(text: str) -> str:
    (line,) = text.strip().splitlines()
    assert line.startswith("nerve: ")
    return line


def test_an_agent_nobody_has_offered_is_refused_with_the_nearest_one(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    done = terminal.run("submit", "wether", "rain in Oslo", "--request-id", "r1")
    assert done.code == 4
    assert "Did you mean weather?" in one_sentence(done.err)
    assert terminal.turns() == []


def test_an_unknown_or_malformed_turn_is_refused(terminal: Terminal) -> None:
    brain = terminal.host("brain", "app.py")
    turn = terminal.run("submit", "weather", "rain in Oslo").out.strip()
    terminal.run("submit", "weather", "rain in Rome")
    brain.stop()
    near = f"{turn[:-1]}{'0' if turn[-1] != '0' else '1'}"
    for command in ("show", "why", "tail", "cancel"):
        done = terminal.here(command, near)
        assert (done.code, f"Did you mean {turn}?" in one_sentence(done.err)) == (4, True)
    assert terminal.here("show", "a/b; drop").code == 2
    assert terminal.here("show", turn).code == 0
    assert terminal.here("show", turn[:-6]).code == 0
    several = terminal.here("show", turn[:3])
    assert (several.code, turn in several.err) == (2, True)


def test_a_wrong_directory_is_refused_with_the_nearest_one(terminal: Terminal) -> None:
    terminal.host("brain", "app.py").stop()
    for command in ("ls", "doctor", "metrics", "reconcile"):
        done = terminal.here(command, "--dir", "nerv")
        assert done.code == 4
        assert "Did you mean --dir" in one_sentence(done.err)
    assert not (terminal.folder / "nerv").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nonsense"], 2),
        (["show"], 2),
        (["ls", "--limit", "0"], 2),
        (["submit", "weather", "--request-id", "r"], 2),
        (["submit", "weather", "x", "--request-id", "a\tb"], 2),
        (["submit", "we/ather", "x"], 2),
        (["submit", "weather", "--file", "missing.txt"], 2),
        (["brain", "ap.py"], 4),
        (["brain", "."], 4),
        (["hands", "app.py", "--route", "hand"], 4),
        (["hands", "app.py", "--metrics", "nowhere"], 2),
        (["hands", "app.py", "--slots", "0"], 2),
        (["doctor", "--adopt", "stolen"], 2),
        (["brain", "app.py", "--dir", "app.py/x"], 2),
        (["brain", "app.py", "--dir", "app.py"], 2),
    ],
)
def test_bad_arguments_have_a_sentence_and_a_code(
    terminal: Terminal, arguments: list[str], code: int
) -> None:
    done = terminal.here(*arguments)
    assert (done.code, done.out) == (code, "")
    said = [line for line in done.err.strip().splitlines() if not line.startswith("Request id")]
    assert one_sentence("\n".join(said))
    as_json = terminal.here(*arguments, "--json")
    assert (as_json.code, bool(as_json.error["message"])) == (code, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef f(:\n", "app.py:2: SyntaxError"),
        ("x = 1\n\ny = z\n", "app.py:3: NameError"),
        ("import other\n", "other.py:2: ZeroDivisionError"),
        ("import missing_thing\n", "app.py:1: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "app.py:1: SystemExit"),
        (
            "from nerve.protocol import Catalog\nc = Catalog()\n@c.tool\ndef f(x): return x\n",
            "app.py:3:",
        ),
        ("x = 1\n", "app.py has no agent"),
    ],
)
def test_a_file_that_does_not_run_is_named_with_its_line(
    terminal: Terminal, text: str, said: str
) -> None:
    (terminal.folder / "other.py").write_text("x = 1\n1 / 0\n")
    (terminal.folder / "app.py").write_text(text)
    for command in ("brain", "dev"):
        done = terminal.here(command, "app.py")
        assert done.code in (2, 4)
        assert said in one_sentence(done.err)
    assert not (terminal.folder / ".nerve").exists()


@pytest.mark.parametrize("setting", ["NERVE_LEASE_SECONDS=soon", "NERVE_HEARTBEAT_SECONDS=29"])
def test_a_wrong_setting_is_named(terminal: Terminal, setting: str) -> None:
    name, _, value = setting.partition("=")
    done = terminal.run("brain", "app.py", **{name: value})
    assert done.code == 2
    assert name in one_sentence(done.err)


def test_a_reader_that_leaves_early_is_no_error(terminal: Terminal) -> None:
    terminal.host("brain", "app.py")
    command = f"{' '.join(NERVE)} doctor | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=terminal.folder,
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_damaged_ledger_is_refused_with_what_to_do(terminal: Terminal) -> None:
    terminal.host("brain", "app.py").stop()
    ledger = terminal.folder / ".nerve" / "brain.db"
    ledger.write_bytes(b"no ledger at all" * 1000)
    for side in (Path(f"{ledger}-wal"), Path(f"{ledger}-shm")):
        side.unlink(missing_ok=True)
    done = terminal.run("brain", "app.py")
    assert done.code == 6
    assert "restore it from a backup" in one_sentence(done.err)
    looked = terminal.run("doctor")
    assert (looked.code, "restore it from a backup" in looked.out) == (6, True)


def test_the_help_loads_neither_room_nor_what_they_stand_on() -> None:
    code = (
        "import sys\nfrom nerve.deploy.entry import run\nassert run(['--help']) == 0\n"
        "heavy = {'pydantic', 'sqlalchemy', 'sqlite3', 'nerve.brain', 'nerve.hands', 'alembic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    for name in ("brain", "hands", "dev", "submit", "why", "reconcile", "doctor", "init"):
        assert name in done.stdout
