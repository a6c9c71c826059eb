"""`--logs` with whatever a folder may hold: it works, or is refused in one sentence."""

import os
from pathlib import Path

import pytest

from nerve.deploy.demo.logfiles import LINE_CHARACTERS, TAIL_BYTES, TROUBLE, find, listing
from nerve.deploy.demo.scenario import scenario
from nerve.protocol.errors import BadInput, ToolFailed
from support.demo_run import DemoRun

HUGE_BYTES = 110 * 1024 * 1024
LINE = b"2026-01-01T10:00:00Z error: the pool is exhausted, timeout after 30000 ms\n"


def strange(folder: Path) -> Path:
    """Every kind of file that is no ordinary log, beside two that are."""
    folder.mkdir()
    (folder / "empty.log").touch()
    (folder / "latin.log").write_bytes(b"caf\xe9 \xff\xfe error: \x1b[31mred\x1b[0m timeout\r\n")
    (folder / "binary").write_bytes(bytes(range(256)) * 100)
    (folder / "gone").symlink_to(folder / "nowhere")
    (folder / "unreadable").symlink_to("/proc/self/mem")
    (folder / "sub").mkdir()
    (folder / "sub" / "$last \"q'.log").write_bytes(LINE)
    (folder / os.fsdecode(b"bad\xffname\nline.log")).write_bytes(b"x error")
    os.mkfifo(folder / "pipe")
    with (folder / "huge.log").open("wb") as file:
        while file.tell() < HUGE_BYTES:
            file.write(LINE * 10_000)
    return folder


@pytest.mark.slow
def test_a_folder_of_strange_files_is_investigated(tmp_path: Path) -> None:
    logs = strange(tmp_path / "logs")
    with DemoRun(tmp_path, "--json", "--logs", str(logs)) as run:
        assert run.end() == 0, run.errors
        [done] = run.of("done")
    assert done["holds"]
    said = done["text"]
    assert "huge.log (the end of it, without the first" in said
    assert "latin.log: 1 of 1 lines tell of trouble" in said
    left = [line["text"] for line in run.lines if line.get("text", "").startswith("left out")]
    assert len(left) == 4
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("missing", "there is no folder"),
        ("empty", "holds no files"),
        ("file", "is a file"),
        ("binary", "no file that can be read as text: core is binary"),
    ],
)
def test_what_cannot_be_investigated_is_refused_in_a_sentence(
    tmp_path: Path, name: str, sentence: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "core").write_bytes(b"\0")
    with DemoRun(tmp_path, "--logs", str(tmp_path / name)) as run:
        assert run.process.wait(timeout=50) in (2, 4)
    assert sentence in run.errors
    assert run.errors.startswith("nerve: ")
    assert run.errors.count("\n") == 1
    assert run.folders == []


def test_files_are_told_apart(tmp_path: Path) -> None:
    found = listing(strange(tmp_path / "logs"))
    names = {each.name for each in found.files}
    assert names == {
        "empty.log",
        "latin.log",
        "huge.log",
        "sub/$last \"q'.log",
        "bad\\xffname\\nline.log",
    }
    reasons = dict(found.skipped)
    assert reasons["binary"] == "is binary"
    assert reasons["pipe"] == "is no regular file"
    assert reasons["gone"].startswith("cannot be read")
    assert reasons["unreadable"].startswith("cannot be read")


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large.log").open("wb") as file:
        file.write(b"an error long ago\n" * 1_000)
        file.truncate(HUGE_BYTES)
        file.seek(HUGE_BYTES)
        file.write(b"\n" + LINE * 3)
    [large] = listing(tmp_path).files
    found = find(large, TROUBLE)
    assert found.matches == 3
    assert found.skipped_bytes >= HUGE_BYTES - TAIL_BYTES


def test_a_line_without_end_is_quoted_in_part(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_bytes(b"x" * 100_000 + b" error " * 100_000)
    [file] = listing(tmp_path).files
    found = find(file, TROUBLE)
    assert (found.lines, found.matches) == (1, 1)
    assert len(found.first) <= LINE_CHARACTERS


def test_no_path_beyond_the_listing_is_opened(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "secret").write_text("error")
    found = listing(tmp_path / "logs")
    for name in ("../secret", str(tmp_path / "secret"), "", "."):
        with pytest.raises(ToolFailed, match="there is no log"):
            found.file(name)


def test_a_folder_with_very_many_files_is_looked_through_in_part(tmp_path: Path) -> None:
    for number in range(2_100):
        (tmp_path / f"{number}.log").touch()
    found = listing(tmp_path)
    assert len(found.files) == 12
    assert found.skipped == [("1988 older files", "only the 12 newest are taken")]


def test_a_log_is_found_again_when_others_became_newer(tmp_path: Path) -> None:
    (tmp_path / "first.log").touch()
    chosen = listing(tmp_path).files[0].name
    os.utime(tmp_path / "first.log", (1, 1))
    for number in range(20):
        (tmp_path / f"{number}.log").touch()
    assert listing(tmp_path).file(chosen).path == tmp_path / "first.log"


def test_the_script_fits_the_smallest_folder(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    assert scenario(tmp_path).calls == 4
    with pytest.raises(BadInput, match="is a file"):
        scenario(tmp_path / "a.log")
