"""`nerve init` as a newcomer uses it: the project runs, its test passes, its README is right."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.terminal import Terminal


def code_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("live", [False, True])
def test_the_written_project_is_short_and_its_own_test_passes(tmp_path: Path, live: bool) -> None:
    terminal = Terminal(tmp_path)
    done = terminal.run("init", "myagent", *(["--live"] if live else []))
    assert done.code == 0
    project = tmp_path / "myagent"
    assert len(code_lines(project / "app.py")) <= 12
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        env=terminal.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert tested.returncode == 0, tested.stdout


def test_the_written_project_answers(tmp_path: Path) -> None:
    Terminal(tmp_path).run("init", "myagent")
    terminal = Terminal(tmp_path / "myagent")
    try:
        terminal.host("dev", "app.py")
        done = terminal.run(
            "submit", "weather", "Will it rain in Oslo?", "--request-id", "r1", "--wait"
        )
        assert (done.code, done.out) == (0, "The forecast: sunny in Oslo.\n")
    finally:
        terminal.close()


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = terminal.run("init", "mine")
    assert (done.code, "thesis.txt" in done.err) == (3, True)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert terminal.run("init", "mine/thesis.txt").code == 3
    assert terminal.run("init", "mine/thesis.txt/deeper").code in (2, 3)
