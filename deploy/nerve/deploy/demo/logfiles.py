"""The log files of a folder, whatever stands in it: told apart, and read within bounds."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from nerve.deploy.output import shown
from nerve.protocol.errors import BadInput, NotFound, ToolFailed

TAIL_BYTES = 4 * 1024 * 1024
HEAD_BYTES = 8 * 1024
LINE_CHARACTERS = 110
DEPTH_MAX = 3
ENTRIES_MAX = 2_000
FILES_MAX = 12

TROUBLE = re.compile(
    rb"\b(?:error|errors|fatal|critical|panic|exception|traceback|failed|timeout)\b"
    rb'|" 5\d\d |Query_time: (?:[5-9]|\d\d)',
    re.IGNORECASE,
)
_TIME = re.compile(rb"(?<!\d)([01]\d|2[0-3]):[0-5]\d:[0-5]\d")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One file. `name` is its place in the folder, as any program and terminal can take it."""

    name: str
    path: Path
    size: int
    written: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What can be read, the newest first, and what cannot or is too much, with the reason."""

    files: Sequence[LogFile]
    skipped: Sequence[tuple[str, str]]
    older: Sequence[LogFile] = ()

    def file(self, name: str) -> LogFile:
        """The file of this name. Raises ToolFailed: no other path is ever opened."""
        # Among the older ones too: while logs are written, which are the newest changes.
        for each in (*self.files, *self.older):
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.files[:5]) or "none"
        raise ToolFailed(f"there is no log {ascii(name)[:80]}; there are: {known}")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Lines of one file that fit a pattern; `lines` counts all that were read."""

    lines: int
    matches: int
    first: str
    times: Sequence[str]
    skipped_bytes: int


def listing(folder: Path) -> Listing:
    """Look through a folder, at most three levels and two thousand entries of it.

    Raises:
        NotFound: there is nothing of that name.
        BadInput: it is no folder, or may not be looked into.
    """
    _check(folder)
    files: list[LogFile] = []
    skipped: list[tuple[str, str]] = []
    for path, name in _entries(folder):
        try:
            found = path.stat()
            problem = _problem(path, found)
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
        else:
            if problem is None:
                files.append(
                    LogFile(name=name, path=path, size=found.st_size, written=found.st_mtime)
                )
                continue
        skipped.append((name, problem))
    files.sort(key=lambda each: (-each.written, each.name))
    left = len(files) - FILES_MAX
    if left > 0:
        skipped.append((f"{left} older files", f"only the {FILES_MAX} newest are taken"))
    return Listing(files=files[:FILES_MAX], skipped=skipped, older=files[FILES_MAX:])


def find(file: LogFile, pattern: re.Pattern[bytes]) -> Found:
    """Search the end of a file, at most `TAIL_BYTES` of it. Raises ToolFailed where it is gone."""
    try:
        data, skipped = tail(file.path)
    except OSError as error:
        raise ToolFailed(f"{file.name} cannot be read: {error.strerror}") from None
    first = ""
    matches = 0
    times: list[str] = []
    for line in _lines(data, pattern):
        matches += 1
        first = first or text_of(line)
        time = _TIME.search(line)
        if time is not None:
            times = [times[0] if times else time.group().decode(), time.group().decode()]
    lines = data.count(b"\n") + bool(data and not data.endswith(b"\n"))
    return Found(lines=lines, matches=matches, first=first, times=times, skipped_bytes=skipped)


def tail(path: Path, most: int = TAIL_BYTES) -> tuple[bytes, int]:
    """The last bytes of a regular file from the beginning of a line, and how many came before."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is no regular file any more")
        start = max(0, found.st_size - most)
        file.seek(start)
        data = file.read(most)
    cut = data.find(b"\n") + 1 if start else 0
    return data[cut:], start + cut


def text_of(line: bytes) -> str:
    """A line of any encoding as text that a terminal can show."""
    text = " ".join(shown(line.decode("utf-8", "replace")).split())
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 3]}..."


def size_of(count: int) -> str:
    """A number of bytes for people."""
    for unit, name in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def number_of(count: int, name: str) -> str:
    """A number of things for people."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _check(folder: Path) -> None:
    if folder.is_file():
        raise BadInput(
            f"{folder} is a file", where="--logs", next_step=f"Name its folder: {folder.parent}"
        )
    if not folder.exists():
        raise NotFound(
            f"there is no folder {folder}",
            where="--logs",
            next_step="Name a folder with log files, or leave --logs out for those that are shipped",
        )
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be looked into: {error.strerror}",
            where="--logs",
            next_step="Name a folder that you may read",
        ) from None


def _entries(folder: Path) -> Iterator[tuple[Path, str]]:
    count = 0
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth + 1 < DEPTH_MAX else []
        count += len(folders)
        for name in sorted(names):
            count += 1
            if count > ENTRIES_MAX:
                return
            path = Path(place, name)
            yield path, _name(path.relative_to(folder))


def _name(path: Path) -> str:
    # Names are bytes to the system; in a message they are text on one line.
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def _problem(path: Path, found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        head = os.read(descriptor, HEAD_BYTES)
    finally:
        os.close(descriptor)
    return "is binary" if b"\0" in head else None


def _lines(data: bytes, pattern: re.Pattern[bytes]) -> Iterator[bytes]:
    """Each line with a match once; of a line without end only what is near the match."""
    position = 0
    while (match := pattern.search(data, position)) is not None:
        near = max(position, match.start() - 4 * LINE_CHARACTERS)
        begin = data.rfind(b"\n", near, match.start()) + 1 or near
        end = data.find(b"\n", match.end())
        position = len(data) if end < 0 else end + 1
        yield data[begin : min(position, begin + 8 * LINE_CHARACTERS)]
